//! Python's pickle, read as plain data: numbers, texts, lists, tuples and dicts.
//!
//! A pickle is a program, and reading one the usual way runs it. Nothing is run here: only the opcodes of plain data
//! are known, and any opcode that names, calls or needs a class or a function is refused, with its position. Values are
//! in one list and refer to each other by number, so a value that contains itself or is nested very deeply does no
//! harm. A file has at most a value for each four of its bytes, and what is open or remembered has bounds too, so that
//! memory is bounded by its length. Code that follows the numbers must limit how far it goes.

use anyhow::{Result, bail, ensure};
use std::collections::HashMap;

/// Values of one pickle at most: about 3 GB.
const MOST_VALUES: usize = 1 << 26;
/// Values that a pickle of any length may have.
const FREE_VALUES: usize = 1 << 20;
/// [B] Beyond that, what a value takes in the file on average at least; in PyTorch's snapshots it is about eight.
const LEAST_VALUE: usize = 4;
/// Lists, tuples and dicts that are open at once; Python's own pickler gives up at a thousand.
const MOST_OPEN: usize = 10_000;

/// The number of a value.
pub(crate) type Id = u32;

/// A value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value<'a> {
    None,
    Bool(bool),
    Int(i64),
    /// A number that 64 bits do not hold.
    Huge,
    Float(f64),
    Text(&'a str),
    Bytes(&'a [u8]),
    List(Vec<Id>),
    Tuple(Vec<Id>),
    Dict(Vec<(Id, Id)>),
}

/// All values of a pickle.
#[derive(Debug)]
pub(crate) struct Pickle<'a> {
    values: Vec<Value<'a>>,
    top: Id,
}

impl<'a> Pickle<'a> {
    /// Reads one; see the file's head.
    pub(crate) fn read(bytes: &'a [u8]) -> Result<Pickle<'a>> {
        let mut m = Machine {
            bytes,
            at: 0,
            values: Vec::new(),
            stack: Vec::new(),
            marks: Vec::new(),
            memo: HashMap::new(),
        };
        let top = m.run()?;
        Ok(Pickle { values: m.values, top })
    }

    /// The value that the pickle is of.
    pub(crate) fn top(&self) -> &Value<'a> {
        self.get(self.top)
    }

    /// The value of that number.
    pub(crate) fn get(&self, id: Id) -> &Value<'a> {
        self.values.get(id as usize).unwrap_or(&Value::None)
    }

    /// The value behind a key of a dict; the last one wins.
    pub(crate) fn field(&self, dict: &Value<'a>, key: &str) -> Option<&Value<'a>> {
        self.field_id(dict, key).map(|id| self.get(id))
    }

    /// The number of that value: what a pickle refers to several times has one number.
    pub(crate) fn field_id(&self, dict: &Value<'a>, key: &str) -> Option<Id> {
        let Value::Dict(pairs) = dict else { return None };
        let found = pairs.iter().rev().find(|p| matches!(self.get(p.0), Value::Text(t) if *t == key))?;
        Some(found.1)
    }

    /// The elements of a list or a tuple.
    pub(crate) fn items(&self, list: &Value<'a>) -> Option<impl ExactSizeIterator<Item = &Value<'a>>> {
        match list {
            Value::List(ids) | Value::Tuple(ids) => Some(ids.iter().map(|&id| self.get(id))),
            _ => None,
        }
    }
}

/// Why an opcode is not read.
fn refused(op: u8) -> Option<&'static str> {
    Some(match op {
        b'c' => "GLOBAL, which names a class or a function",
        0x93 => "STACK_GLOBAL, which names a class or a function",
        b'R' => "REDUCE, which calls a function",
        b'b' => "BUILD, which calls a method",
        b'i' => "INST, which makes an object",
        b'o' => "OBJ, which makes an object",
        0x81 => "NEWOBJ, which makes an object",
        0x92 => "NEWOBJ_EX, which makes an object",
        0x82..=0x84 => "EXT, which names a class or a function",
        b'P' | b'Q' => "PERSID, which names something outside the file",
        0x97 | 0x98 => "NEXT_BUFFER, which is outside the file",
        _ => return None,
    })
}

struct Machine<'a> {
    bytes: &'a [u8],
    at: usize,
    values: Vec<Value<'a>>,
    stack: Vec<Id>,
    marks: Vec<usize>,
    memo: HashMap<u64, Id>,
}

impl<'a> Machine<'a> {
    fn take(&mut self, n: u64) -> Result<&'a [u8]> {
        let left = self.bytes.get(self.at..).unwrap_or_default();
        let Some(found) = usize::try_from(n).ok().and_then(|n| left.get(..n)) else {
            bail!("the file ends inside a value of {n} B, of which {} are left", left.len());
        };
        self.at += found.len();
        Ok(found)
    }

    /// A number of so many bytes, the lowest first.
    fn number(&mut self, bytes: u64) -> Result<u64> {
        let found = self.take(bytes)?;
        Ok(found.iter().rev().fold(0, |n, &b| n << 8 | u64::from(b)))
    }

    fn line(&mut self) -> Result<&'a [u8]> {
        let left = self.bytes.get(self.at..).unwrap_or_default();
        let Some(n) = left.iter().position(|&b| b == b'\n') else { bail!("the file ends inside a line") };
        self.at += n + 1;
        Ok(&left[..n])
    }

    fn push(&mut self, value: Value<'a>) -> Result<()> {
        let most = (FREE_VALUES + self.bytes.len() / LEAST_VALUE).min(MOST_VALUES);
        ensure!(
            self.values.len() < most,
            "there are more than {most} values: a snapshot has fewer in so many bytes"
        );
        self.stack.push(self.values.len() as Id);
        self.values.push(value);
        Ok(())
    }

    /// The values above the last mark, or above `least` if there is no mark.
    fn bottom(&self) -> usize {
        self.marks.last().copied().unwrap_or(0)
    }

    fn pop(&mut self) -> Result<Id> {
        ensure!(self.stack.len() > self.bottom(), "a value is missing");
        self.stack.pop().ok_or_else(|| anyhow::anyhow!("a value is missing"))
    }

    fn peek(&self) -> Result<Id> {
        match self.stack.last() {
            Some(&id) if self.stack.len() > self.bottom() => Ok(id),
            _ => bail!("a value is missing"),
        }
    }

    /// All values since the last mark, which goes.
    fn since_mark(&mut self) -> Result<Vec<Id>> {
        let Some(mark) = self.marks.pop() else { bail!("there is no mark") };
        Ok(self.stack.split_off(mark))
    }

    fn tuple(&mut self, n: usize) -> Result<()> {
        let mut all = (0..n).map(|_| self.pop()).collect::<Result<Vec<_>>>()?;
        all.reverse();
        self.push(Value::Tuple(all))
    }

    fn append(&mut self, items: Vec<Id>) -> Result<()> {
        let list = self.peek()?;
        match self.values.get_mut(list as usize) {
            Some(Value::List(all)) => all.extend(items),
            _ => bail!("something is appended to what is no list"),
        }
        Ok(())
    }

    fn set_items(&mut self, items: Vec<Id>) -> Result<()> {
        ensure!(items.len().is_multiple_of(2), "a key has no value");
        let dict = self.peek()?;
        match self.values.get_mut(dict as usize) {
            Some(Value::Dict(all)) => all.extend(items.chunks_exact(2).map(|p| (p[0], p[1]))),
            _ => bail!("something is set in what is no dict"),
        }
        Ok(())
    }

    fn text(&mut self, length: u64) -> Result<()> {
        let bytes = self.take(length)?;
        match std::str::from_utf8(bytes) {
            Ok(text) => self.push(Value::Text(text)),
            // Python writes half surrogates, which are no text elsewhere.
            Err(_) => self.push(Value::Bytes(bytes)),
        }
    }

    fn long(&mut self, length: u64) -> Result<()> {
        let bytes = self.take(length)?;
        let negative = bytes.last().is_some_and(|b| b & 0x80 != 0);
        let (head, tail) = bytes.split_at(bytes.len().min(8));
        let fill = if negative { u64::MAX } else { 0 };
        let n = head.iter().rev().fold(fill, |n, &b| n << 8 | u64::from(b)) as i64;
        let fits = tail.iter().all(|&b| b == fill as u8) && (n < 0) == negative;
        self.push(if fits { Value::Int(n) } else { Value::Huge })
    }

    fn decimal(&mut self) -> Result<()> {
        let line = self.line()?;
        let text = std::str::from_utf8(line).unwrap_or("").trim_end_matches('L');
        let value = match text {
            "00" => Value::Bool(false),
            "01" => Value::Bool(true),
            _ => match text.parse() {
                Ok(n) => Value::Int(n),
                Err(_)
                    if !text.is_empty()
                        && text.trim_start_matches('-').bytes().all(|b| b.is_ascii_digit()) =>
                {
                    Value::Huge
                }
                Err(_) => bail!("this is no number"),
            },
        };
        self.push(value)
    }

    fn remember(&mut self, number: u64) -> Result<()> {
        let id = self.peek()?;
        let is_new = self.memo.len() < self.values.len() || self.memo.contains_key(&number);
        ensure!(is_new, "something is remembered more often than there are values");
        self.memo.insert(number, id);
        Ok(())
    }

    fn recall(&mut self, number: u64) -> Result<()> {
        match self.memo.get(&number) {
            Some(&id) => self.stack.push(id),
            None => bail!("value {number} was never remembered"),
        }
        Ok(())
    }

    fn run(&mut self) -> Result<Id> {
        loop {
            let start = self.at;
            let Some(&op) = self.bytes.get(self.at) else {
                bail!("at byte {start}: the file ends before the pickle does: it is cut off");
            };
            self.at += 1;
            if op == b'.' {
                return match (self.stack.len(), self.marks.len()) {
                    (1, 0) => self.pop(),
                    (n, _) => bail!("at byte {start}: {n} values are left at the end, not one"),
                };
            }
            if let Some(why) = refused(op) {
                bail!("at byte {start}: {why}: a snapshot is plain data, and this is not; it was not run");
            }
            self.step(op).map_err(|e| e.context(format!("at byte {start}")))?;
        }
    }

    fn step(&mut self, op: u8) -> Result<()> {
        match op {
            0x80 => match self.number(1)? {
                0..=5 => Ok(()),
                n => bail!("this is a pickle of protocol {n}; 0 to 5 can be read"),
            },
            0x95 => self.take(8).map(drop), // FRAME
            b'N' => self.push(Value::None),
            0x88 => self.push(Value::Bool(true)),
            0x89 => self.push(Value::Bool(false)),
            b'I' | b'L' => self.decimal(),
            b'K' => self.number(1).and_then(|n| self.push(Value::Int(n as i64))),
            b'M' => self.number(2).and_then(|n| self.push(Value::Int(n as i64))),
            b'J' => self.number(4).and_then(|n| self.push(Value::Int(i64::from(n as u32 as i32)))),
            0x8a => self.number(1).and_then(|n| self.long(n)),
            0x8b => self.number(4).and_then(|n| self.long(n)),
            b'G' => {
                let bits = self.take(8)?.iter().fold(0, |n, &b| n << 8 | u64::from(b));
                self.push(Value::Float(f64::from_bits(bits)))
            }
            b'F' => match std::str::from_utf8(self.line()?).map(str::parse) {
                Ok(Ok(n)) => self.push(Value::Float(n)),
                _ => bail!("this is no number"),
            },
            0x8c => self.number(1).and_then(|n| self.text(n)),
            b'X' => self.number(4).and_then(|n| self.text(n)),
            0x8d => self.number(8).and_then(|n| self.text(n)),
            b'V' => match std::str::from_utf8(self.line()?) {
                Ok(text) => self.push(Value::Text(text)),
                Err(_) => bail!("this is no text"),
            },
            b'U' | b'C' => self.number(1).and_then(|n| self.take(n)).and_then(|b| self.push(Value::Bytes(b))),
            b'T' | b'B' => self.number(4).and_then(|n| self.take(n)).and_then(|b| self.push(Value::Bytes(b))),
            0x8e | 0x96 => self.number(8).and_then(|n| self.take(n)).and_then(|b| self.push(Value::Bytes(b))),
            b']' => self.push(Value::List(Vec::new())),
            b'}' => self.push(Value::Dict(Vec::new())),
            b')' => self.push(Value::Tuple(Vec::new())),
            0x85..=0x87 => self.tuple(usize::from(op - 0x84)),
            b'(' => {
                ensure!(
                    self.marks.len() < MOST_OPEN,
                    "more than {MOST_OPEN} lists, tuples and dicts are open"
                );
                self.marks.push(self.stack.len());
                Ok(())
            }
            b't' => self.since_mark().and_then(|all| self.push(Value::Tuple(all))),
            b'l' => self.since_mark().and_then(|all| self.push(Value::List(all))),
            b'd' => {
                let all = self.since_mark()?;
                self.push(Value::Dict(Vec::new()))?;
                self.set_items(all)
            }
            b'e' => self.since_mark().and_then(|all| self.append(all)),
            b'u' => self.since_mark().and_then(|all| self.set_items(all)),
            b'a' => self.pop().and_then(|v| self.append(vec![v])),
            b's' => {
                let (value, key) = (self.pop()?, self.pop()?);
                self.set_items(vec![key, value])
            }
            b'0' => self.pop().map(drop),
            b'1' => self.since_mark().map(drop),
            0x94 => self.remember(self.memo.len() as u64),
            b'q' => self.number(1).and_then(|n| self.remember(n)),
            b'r' => self.number(4).and_then(|n| self.remember(n)),
            b'h' => self.number(1).and_then(|n| self.recall(n)),
            b'j' => self.number(4).and_then(|n| self.recall(n)),
            b'p' | b'g' => {
                let Some(n) = std::str::from_utf8(self.line()?).ok().and_then(|t| t.parse().ok()) else {
                    bail!("this is no number");
                };
                if op == b'p' { self.remember(n) } else { self.recall(n) }
            }
            _ => bail!(
                "there is no opcode {op:#04x} of plain data: the file is damaged, or no pickle of a snapshot"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error_of(bytes: &[u8]) -> String {
        format!("{:#}", Pickle::read(bytes).unwrap_err())
    }

    #[test]
    fn plain_data_of_every_protocol() {
        // {"a": [1, -2, True, None], "b": (2**40, 1.5)}, as Python writes it by protocols 0, 2 and 4.
        let all: [&[u8]; 3] = [
            b"(dp0\nVa\np1\n(lp2\nI1\naI-2\naI01\naNasVb\np3\n(I1099511627776\nF1.5\ntp4\ns.",
            b"\x80\x02}q\x00(X\x01\x00\x00\x00aq\x01]q\x02(K\x01J\xfe\xff\xff\xff\x88NeX\x01\x00\x00\x00bq\x03\
              \x8a\x06\x00\x00\x00\x00\x00\x01G?\xf8\x00\x00\x00\x00\x00\x00\x86q\x04u.",
            b"\x80\x04\x95\x2a\x00\x00\x00\x00\x00\x00\x00}\x94(\x8c\x01a\x94]\x94(K\x01J\xfe\xff\xff\xff\x88Ne\x8c\x01b\
              \x94\x8a\x06\x00\x00\x00\x00\x00\x01G?\xf8\x00\x00\x00\x00\x00\x00\x86\x94u.",
        ];
        for bytes in all {
            let p = Pickle::read(bytes).unwrap();
            let list = p.field(p.top(), "a").unwrap();
            let items: Vec<_> = p.items(list).unwrap().cloned().collect();
            assert_eq!(items, [Value::Int(1), Value::Int(-2), Value::Bool(true), Value::None]);
            let pair: Vec<_> = p.items(p.field(p.top(), "b").unwrap()).unwrap().cloned().collect();
            assert_eq!(pair, [Value::Int(1 << 40), Value::Float(1.5)]);
            assert_eq!(p.field(p.top(), "c"), None);
            for n in 0..bytes.len() {
                assert!(Pickle::read(&bytes[..n]).is_err(), "cut off at {n}");
            }
        }
    }

    #[test]
    fn long_numbers() {
        let of = |bytes: &[u8]| {
            let mut all = vec![0x8a, bytes.len() as u8];
            all.extend_from_slice(bytes);
            all.push(b'.');
            match Pickle::read(&all).unwrap().top() {
                Value::Int(n) => Some(*n),
                other => {
                    assert_eq!(*other, Value::Huge);
                    None
                }
            }
        };
        assert_eq!(of(&[]), Some(0));
        assert_eq!(of(&[0xff]), Some(-1));
        assert_eq!(of(&i64::MAX.to_le_bytes()), Some(i64::MAX));
        assert_eq!(of(&i64::MIN.to_le_bytes()), Some(i64::MIN));
        assert_eq!(of(&[0, 0, 0, 0, 0, 0, 0, 0x80, 0]), None);
        assert_eq!(of(&[1, 0, 0, 0, 0, 0, 0, 0, 0, 0]), Some(1));
    }

    /// A pickle that would run `os.system`, and each opcode that could help with it, are refused.
    #[test]
    fn nothing_is_ever_run() {
        let e = error_of(b"\x80\x02cos\nsystem\nq\x00X\x04\x00\x00\x00trueq\x01\x85q\x02Rq\x03.");
        assert!(e.starts_with("at byte 2: GLOBAL, which names a class or a function"), "{e}");
        let e = error_of(b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x04true\x85R.");
        assert!(e.starts_with("at byte 14: STACK_GLOBAL"), "{e}");
        for op in [b'R', b'b', b'i', b'o', b'P', b'Q', 0x81, 0x82, 0x83, 0x84, 0x92, 0x93, 0x97, 0x98] {
            let e = error_of(&[0x80, 4, b'N', b'N', op, 0, b'\n', b'.']);
            assert!(e.starts_with("at byte 4: ") && e.ends_with("it was not run"), "{op:#x}: {e}");
        }
    }

    #[test]
    fn damage_is_told_with_its_place() {
        for (bytes, wants) in [
            (&b""[..], "at byte 0: the file ends before the pickle does"),
            (b"\x80\x06N.", "at byte 0: this is a pickle of protocol 6"),
            (b"\x80\x02\xee.", "at byte 2: there is no opcode 0xee"),
            (b"\x80\x02X\xff\xff\xff\xffab.", "at byte 2: the file ends inside a value of 4294967295 B"),
            (b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\xff.", "a value of 18446744073709551615 B"),
            (b"\x80\x02h\x05.", "at byte 2: value 5 was never remembered"),
            (b"\x80\x02e.", "at byte 2: there is no mark"),
            (b"\x80\x02N(Ne.", "at byte 5: something is appended to what is no list"),
            (b"\x80\x02}(Nu.", "at byte 5: a key has no value"),
            (b"\x80\x02NN.", "at byte 4: 2 values are left"),
            (b"\x80\x02.", "at byte 2: 0 values are left"),
            (b"\x80\x02]a.", "at byte 3: a value is missing"),
            (b"I12x\n.", "at byte 0: this is no number"),
        ] {
            let e = error_of(bytes);
            assert!(e.contains(wants), "{bytes:x?}: `{e}` does not contain `{wants}`");
        }
    }

    /// A value that contains itself, and one nested a million times, are read and dropped without harm.
    #[test]
    fn endless_values_do_no_harm() {
        let p = Pickle::read(b"\x80\x02]q\x00(h\x00h\x00e.").unwrap();
        assert_eq!(p.items(p.top()).unwrap().len(), 2);
        let mut deep = vec![b']'; 1_000_000];
        deep.extend(vec![b'a'; 999_999]);
        deep.push(b'.');
        let p = Pickle::read(&deep).unwrap();
        assert_eq!(p.items(p.top()).unwrap().len(), 1);
    }
}
