//! Fractions as text. They are read and written digit by digit, with the results of the standard library. That one is faster,
//! but has 37 KB of code and tables.

use std::fmt;

/// A number whose decimal digits are all there: `0.` and the digits, times ten to the power of `whole`.
struct Decimal {
    digits: Vec<u8>, // from 0 to 9; none is missing, but there may be zeros at both ends
    whole: usize,    // how many digits are before the point
}

/// How many digits are kept. No number halfway between two `f64`s has more than 768, so of what follows it only matters whether
/// it is more than nothing.
const MOST_DIGITS: usize = 800;

impl Decimal {
    fn of(number: u64) -> Decimal {
        let digits: Vec<u8> = number.to_string().bytes().map(|c| c - b'0').collect();
        Decimal { whole: digits.len(), digits }
    }
    /// Halves it.
    fn halve(&mut self) {
        let mut rest = 0;
        for digit in &mut self.digits {
            let now = rest * 10 + *digit;
            (*digit, rest) = (now / 2, now % 2);
        }
        if rest > 0 {
            self.digits.push(5);
        }
    }
    /// Doubles what is behind the point, and returns the bit that leaves it. The digits before the point have to be 0.
    fn next_bit(&mut self) -> u64 {
        let mut carry = 0;
        for digit in self.digits.iter_mut().skip(self.whole).rev() {
            let now = *digit * 2 + carry;
            (*digit, carry) = (now % 10, now / 10);
        }
        while self.digits.len() > self.whole && self.digits.last() == Some(&0) {
            self.digits.pop();
        }
        carry.into()
    }
    fn is_zero(&self) -> bool {
        self.digits.iter().all(|&d| d == 0)
    }
    /// The nearest `f64`; of two that are as near, the one whose last bit is 0.
    fn nearest(mut self) -> f64 {
        if self.is_zero() {
            return 0.0;
        }
        let mut exponent = 0; // the number is what is left, times two to the power of this
        while self.digits.iter().take(self.whole).any(|&d| d > 0) {
            self.halve();
            exponent += 1;
        }
        // 53 bits from the first 1 on, but none below the last one that an f64 has.
        let mut bits = 0u64;
        while bits < 1 << 52 && exponent > -1074 {
            bits = bits << 1 | self.next_bit();
            exponent -= 1;
        }
        let above = self.next_bit() == 1 && (bits % 2 == 1 || !self.is_zero());
        bits += u64::from(above);
        // The product is exact, or infinite.
        let two_to = |n: i32| f64::from_bits(((n + 1023) as u64) << 52);
        match exponent {
            972.. => f64::INFINITY,
            -1022..972 => bits as f64 * two_to(exponent),
            _ => bits as f64 * two_to(-1022) * two_to(exponent + 1022),
        }
    }
}

/// Reads a number as `f64::from_str` does.
pub(super) fn parse(text: &str) -> Option<f64> {
    let (negative, text) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let is = |word| text.eq_ignore_ascii_case(word);
    let value = match () {
        () if is("nan") => f64::NAN,
        () if is("inf") || is("infinity") => f64::INFINITY,
        () => finite(text)?,
    };
    Some(if negative { -value } else { value })
}

/// Digits with or without a point, and a power of ten.
fn finite(text: &str) -> Option<f64> {
    let (number, power) = match text.split_once(['e', 'E']) {
        Some((number, power)) => (number, whole(power)?),
        None => (text, 0),
    };
    let (before, behind) = number.split_once('.').unwrap_or((number, ""));
    let all = || before.bytes().chain(behind.bytes());
    if all().next().is_none() || !all().all(|c| c.is_ascii_digit()) {
        return None;
    }
    let zeros = all().take_while(|&c| c == b'0').count();
    let mut digits: Vec<u8> = all().skip(zeros).take(MOST_DIGITS).map(|c| c - b'0').collect();
    if all().skip(zeros + MOST_DIGITS).any(|c| c != b'0') {
        digits.push(1);
    }
    // How many of the digits are before the point; less than 0 is that many zeros behind it.
    let point = power.saturating_add(before.len() as i64 - zeros as i64);
    Some(match point {
        _ if digits.is_empty() => 0.0,
        310.. => f64::INFINITY,
        ..-330 => 0.0,
        0.. => {
            digits.resize(digits.len().max(point as usize), 0);
            Decimal { digits, whole: point as usize }.nearest()
        }
        _ => {
            digits.splice(0..0, (point..0).map(|_| 0));
            Decimal { digits, whole: 0 }.nearest()
        }
    })
}

/// A whole number with or without a sign; one that does not fit becomes so large or small that nothing is left of the rest.
fn whole(text: &str) -> Option<i64> {
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|c| c.is_ascii_digit()) {
        return None;
    }
    let size = digits.bytes().fold(0i64, |n, c| n.saturating_mul(10).saturating_add((c - b'0').into()));
    Some(if text.starts_with('-') { -size } else { size })
}

/// Writes a number from 0 to 1 with as few digits as lead back to it.
pub(super) struct Fraction(pub(super) f64);

impl fmt::Display for Fraction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let x = self.0.clamp(0.0, 1.0);
        if x == 0.0 || x == 1.0 {
            return write!(f, "{}", x as u8);
        }
        // All digits: the bits of the number, halved as often as they are behind the point.
        let bits = x.to_bits();
        let power = (bits >> 52).max(1);
        let normal = u64::from(bits >> 52 > 0) << 52;
        let mut all = Decimal::of(bits & ((1 << 52) - 1) | normal);
        (power..1075).for_each(|_| all.halve());
        let behind = all.digits.split_off(all.whole);
        let zeros = behind.iter().take_while(|&&d| d == 0).count();
        // The first digits, and the same with one more at the end: the nearer first.
        for count in 1..=17 {
            let (first, rest) = behind.split_at((zeros + count).min(behind.len()));
            let below = first.iter().skip(zeros).fold(0, |n, &d| n * 10 + u64::from(d));
            let up = rest.first().is_some_and(|&d| d >= 5);
            for add in [u64::from(up), u64::from(!up)] {
                let text = format!("0.{:0places$}", below + add, places = first.len());
                // One place more would be 1, written wrongly: all of them were 9.
                if text.len() == 2 + first.len() && parse(&text) == Some(x) {
                    return f.write_str(text.trim_end_matches('0'));
                }
            }
        }
        Ok(()) // 17 digits always lead back
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;
    use proptest::prelude::*;

    fn reads_right(text: &str) {
        let right: f64 = text.parse().unwrap();
        assert_eq!(parse(text).map(f64::to_bits), Some(right.to_bits()), "{text}");
    }

    fn writes_right(x: f64) {
        let text = Fraction(x).to_string();
        assert_eq!(text, x.to_string());
        assert_eq!(parse(&text).map(f64::to_bits), Some(x.to_bits()), "{text}");
    }

    #[test]
    fn it_reads_what_the_standard_library_reads() {
        let right = "0 1 0.8 .5 5. -0.0 +0.25 1e-3 1E2 25e-2 1e22 0.1e+1 inf -Infinity 0.333333333333333 00012.50 7e-400 1e400";
        right.split(' ').for_each(reads_right);
        assert!(parse("NaN").unwrap().is_nan());
        for text in ["", ".", "-", "e5", "1e", "1e+-1", "1.2.3", "0,5", "50%", "0x1", "1 ", "--1", "\u{e9}"] {
            assert_eq!(parse(text), None, "{text}");
        }
        let long = "0.9999999999999999 0.12345678901234567890123456789 1e-18 1e-99999999999 1e99999999999 9007199254740993 \
            5e-324 2.4703282292062327e-324 2.4703282292062328e-324 1.7976931348623158e308 1.7976931348623159e308 \
            2.2250738585072011e-308";
        long.split(' ').for_each(reads_right);
    }

    #[test]
    fn a_digit_far_behind_counts() {
        let halfway = "1.00000000000000011102230246251565404236316680908203125";
        for zeros in [0, 100, 700, 900, 5000] {
            let zeros = "0".repeat(zeros);
            reads_right(&format!("{halfway}{zeros}"));
            reads_right(&format!("{halfway}{zeros}1"));
            reads_right(&format!("0.{zeros}1e{}", zeros.len()));
            reads_right(&format!("1{zeros}e-{}", zeros.len()));
        }
    }

    #[test]
    fn it_writes_what_the_standard_library_writes() {
        [0.0, 1.0, 0.9999999999999999, 0.95, 0.1, 1e-5, 1e-18, 5e-324, f64::MIN_POSITIVE]
            .into_iter()
            .for_each(writes_right);
        (1..200).for_each(|n| {
            let power = 2f64.powi(-n);
            [power, power.next_up().min(1.0), power.next_down()].into_iter().for_each(writes_right);
        });
    }

    proptest! {
        #[test]
        fn any_number_is_read_as_the_standard_library_does(x: f64, n: u64, more: u64, power in 0u16..400) {
            for text in [x.to_string(), format!("{n}e-{power}"), format!("{n}.{more}e{power}"), format!("0.{n:020}{more:020}")] {
                if text != "NaN" {
                    reads_right(&text);
                }
            }
            // Halfway between two.
            let odd = (n >> 11 | 1 << 52) * 2 + 1;
            [format!("{odd}"), format!("{odd}.000{more}"), format!("{}.99{more}", odd - 1)].iter().for_each(|t| reads_right(t));
        }

        #[test]
        fn any_fraction_is_written_as_the_standard_library_does(n: u64, x in 0.0..=1.0f64) {
            writes_right(x);
            // Mostly down to 2^-60, now and then to the smallest: such a one has a thousand digits.
            let powers = if n % 32 == 0 { 1023 } else { 60 };
            writes_right(f64::from_bits(((1023 - powers) << 52) + n % (powers << 52)));
        }

        #[test]
        fn up_to_15_digits_are_read_and_written_as_the_standard_library_does(n in 0u64..1_000_000_000_000_000, places in 0usize..=15) {
            let text = format!("{}.{:0places$}", n / 10u64.pow(places as u32), n % 10u64.pow(places as u32));
            reads_right(&text);
            writes_right(format!("0.{n:015}").parse().unwrap());
        }
    }
}
