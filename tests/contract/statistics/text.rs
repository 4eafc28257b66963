//! The statistics as text: by a parser of the grammar of Prometheus' text format, and one of JSON.

use super::*;

pub fn written(d: Device, format: u32) -> String {
    let mut room = 0;
    loop {
        let mut buffer = vec![0x55u8; room];
        let mut needed = 0;
        let at = if room == 0 { null_mut() } else { buffer.as_mut_ptr().cast::<c_char>() };
        outcome(unsafe { millpond_device_write_stats(ptr(d.0), format, at, room, &mut needed) }).unwrap();
        if needed <= room {
            return CStr::from_bytes_until_nul(&buffer).unwrap().to_str().unwrap().to_owned();
        }
        assert!(buffer.iter().all(|&b| b == 0x55), "nothing is written where it does not fit");
        room = needed;
    }
}

// ---- Prometheus ------------------------------------------------------------------------------------------------

fn is_name(text: &str) -> bool {
    let first = |c: char| c.is_ascii_alphabetic() || c == '_' || c == ':';
    text.starts_with(first) && text.chars().all(|c| first(c) || c.is_ascii_digit())
}

/// Labels in braces: their names and values, and what follows.
fn labels(text: &str) -> Result<(BTreeMap<String, String>, &str), String> {
    let mut all = BTreeMap::new();
    let Some(mut rest) = text.strip_prefix('{') else { return Ok((all, text)) };
    while !rest.starts_with('}') {
        let (name, tail) = rest.split_once("=\"").ok_or("no value of a label")?;
        if !is_name(name) || name.contains(':') {
            return Err(format!("label {name:?}"));
        }
        let mut value = String::new();
        let mut chars = tail.char_indices();
        let end = loop {
            match chars.next().ok_or("a label that does not end")? {
                (at, '"') => break at,
                (_, '\\') => match chars.next().ok_or("an escape that does not end")?.1 {
                    'n' => value.push('\n'),
                    c @ ('\\' | '"') => value.push(c),
                    c => return Err(format!("escape {c:?}")),
                },
                (_, c) => value.push(c),
            }
        };
        if all.insert(name.to_owned(), value).is_some() {
            return Err(format!("label {name} twice"));
        }
        rest = &tail[end + 1..];
        rest = rest.strip_prefix(',').unwrap_or(rest);
    }
    Ok((all, &rest[1..]))
}

type Labels = BTreeMap<String, String>;
pub type Samples = BTreeMap<(String, Labels), f64>;

/// Every sample of a page, or what is wrong with it. Each family must have one HELP and one TYPE before its samples, which
/// stand together.
pub fn parse(page: &str) -> Result<Samples, String> {
    let (mut samples, mut families) = (Samples::new(), BTreeSet::new());
    let (mut helped, mut current) = (None::<String>, None::<(String, String)>);
    if !page.ends_with('\n') {
        return Err("the last line does not end".into());
    }
    for line in page.lines() {
        let wrong = |what: &str| format!("{what}: {line}");
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').ok_or(wrong("no help"))?;
            if !is_name(name) || help.is_empty() || !families.insert(name.to_owned()) {
                return Err(wrong("a family that is none, or comes twice"));
            }
            helped = Some(name.to_owned());
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').ok_or(wrong("no type"))?;
            if helped.take().as_deref() != Some(name) || !["counter", "gauge", "histogram"].contains(&kind) {
                return Err(wrong("a type without its help"));
            }
            if (kind == "counter") != name.ends_with("_total") {
                return Err(wrong("counters, and nothing else, end in _total"));
            }
            current = Some((name.to_owned(), kind.to_owned()));
        } else {
            let end = line.find(['{', ' ']).ok_or(wrong("no value"))?;
            let (name, rest) = line.split_at(end);
            let (labels, rest) = labels(rest).map_err(|e| wrong(&e))?;
            let of_family = |(family, kind): &(String, String)| match name.strip_prefix(family.as_str()) {
                Some("") => kind != "histogram",
                Some("_bucket") => kind == "histogram" && labels.contains_key("le"),
                Some("_sum" | "_count") => kind == "histogram",
                _ => false,
            };
            if !current.as_ref().is_some_and(of_family) {
                return Err(wrong("a sample outside its family"));
            }
            let value = rest.strip_prefix(' ').ok_or(wrong("no space before the value"))?;
            let value: f64 = value.parse().map_err(|_| wrong("no number"))?;
            if value.is_nan() || value < 0.0 || samples.insert((name.to_owned(), labels), value).is_some() {
                return Err(wrong("a value below 0, or a sample that comes twice"));
            }
        }
    }
    whole_histograms(&samples)?;
    Ok(samples)
}

/// The buckets of each histogram rise to its count.
fn whole_histograms(samples: &Samples) -> Result<(), String> {
    let mut all: BTreeMap<(String, Labels), Vec<(f64, f64)>> = BTreeMap::new();
    for ((name, labels), &n) in samples {
        let Some(family) = name.strip_suffix("_bucket") else { continue };
        let mut labels = labels.clone();
        let end = labels.remove("le").unwrap_or_default();
        let end: f64 = end.parse().map_err(|_| format!("{name}: le {end:?}"))?;
        all.entry((family.to_owned(), labels)).or_default().push((end, n));
    }
    for ((family, labels), mut buckets) in all {
        buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
        let rises = buckets.is_sorted_by(|a, b| a.0 < b.0 && a.1 <= b.1);
        let count = samples.get(&(format!("{family}_count"), labels.clone())).copied();
        let sum = samples.contains_key(&(format!("{family}_sum"), labels));
        let last = buckets.last().copied();
        if !rises || !sum || count.is_none() || last != count.map(|n| (f64::INFINITY, n)) {
            return Err(format!("the histogram {family} is not whole: {buckets:?}, {count:?}"));
        }
    }
    Ok(())
}

#[test]
fn the_parser_finds_what_is_wrong() {
    let good = "# HELP a_b Help.\n# TYPE a_b gauge\na_b{x=\"1\",y=\"q\\\"\\\\\\n\"} 5\na_b 7\n";
    assert_eq!(parse(good).unwrap().len(), 2);
    for (from, to) in [
        ("# HELP a_b Help.\n", ""),
        ("gauge", "counter"),
        ("a_b 7", "a_c 7"),
        ("a_b 7", "a_b{x=\"1\",y=\"q\\\"\\\\\\n\"} 6"),
        ("y=", "x="),
        (" 5", " five"),
        ("y=", "1y="),
        ("\\n", "\\t"),
        ("a_b 7\n", "a_b 7"),
    ] {
        let bad = good.replacen(from, to, 1);
        assert!(parse(&bad).is_err(), "{bad}");
    }
}

#[test]
fn the_parser_knows_whole_histograms() {
    let good = "# HELP h Help.\n# TYPE h histogram\nh_bucket{le=\"0.5\"} 2\nh_bucket{le=\"+Inf\"} 3\nh_sum 7\nh_count 3\n";
    assert_eq!(parse(good).unwrap().len(), 4);
    for (from, to) in [
        ("histogram", "gauge"),
        ("h_count 3", "h_count 4"),
        ("h_sum 7\n", ""),
        ("{le=\"0.5\"} 2", "{le=\"0.5\"} 4"),
        ("{le=\"0.5\"} 2", "{le=\"half\"} 2"),
        ("{le=\"+Inf\"} 3", "{le=\"0.7\"} 3"),
        ("h_bucket{le=\"0.5\"}", "h_bucket"),
        ("h_sum", "h"),
    ] {
        let bad = good.replacen(from, to, 1);
        assert!(parse(&bad).is_err(), "{bad}");
    }
}

#[test]
fn prometheus_can_read_the_page() {
    apart(|| {
        let d = host(256 * MIB, true);
        let name = CString::new("a \"pool\" \\ of\nmine").unwrap();
        let options = millpond_pool_options {
            struct_size: size_of::<millpond_pool_options>(),
            limit_bytes: 100 << 20,
            name: name.as_ptr(),
            flags: 0,
        };
        let mut handle = null_mut();
        outcome(unsafe { millpond_pool_create(ptr(d.0), &options, &mut handle) }).unwrap();
        let (pool, s) = (Pool(handle.expose_provenance()), d.stream());
        let blocks = [pool.alloc(1000, s).unwrap(), pool.alloc(3 * MIB, s).unwrap(), d.alloc(5000).unwrap()];
        let page = written(d, MILLPOND_STATS_PROMETHEUS);
        let samples = parse(&page).unwrap_or_else(|e| panic!("{e}"));
        let at = |metric: &str, labels: &[(&str, &str)]| {
            let labels = labels.iter().chain(&[("device", "host:0")]);
            let labels = labels.map(|&(n, v)| (n.to_owned(), v.to_owned())).collect();
            samples.get(&(format!("millpond_{metric}"), labels)).copied()
        };
        let of_pool = [("pool", "1"), ("pool_name", name.to_str().unwrap())];
        let told = read(d, None);
        assert_eq!(at("requested_bytes", &[]), Some(1000.0 + 3.0 * MIB as f64 + 5000.0));
        assert_eq!(at("requested_bytes", &of_pool), Some(1000.0 + 3.0 * MIB as f64));
        assert_eq!(at("blocks", &[("class", "small_pool")]), Some(2.0));
        assert_eq!(at("blocks", &[("class", "small_pool"), of_pool[0], of_pool[1]]), Some(1.0));
        assert_eq!(at("blocks_added_total", &[]), Some(3.0));
        assert_eq!(at("reserved_peak_bytes", &[]), Some(told.reserved_bytes.all.peak as f64));
        assert_eq!(at("limit_bytes", &of_pool), Some(f64::from(100 << 20)));
        assert_eq!(at("limit_bytes", &[]), Some(f64::INFINITY), "none");
        assert_eq!(at("device_alloc_calls_total", &[]), Some(told.num_device_alloc as f64));
        assert_eq!(at("device_alloc_calls_total", &of_pool), None, "of the device alone");
        assert!(at("fragmentation_ratio", &[]).unwrap() <= 1.0);
        assert_eq!(at("host_alloc_calls_total", &[]), Some(0.0));
        blocks.into_iter().for_each(|at| free(at).unwrap());
    });
}

// ---- JSON ------------------------------------------------------------------------------------------------------

#[derive(Clone, Debug, PartialEq)]
pub enum Json {
    Null,
    Number(f64),
    Text(String),
    List(Vec<Json>),
    Object(BTreeMap<String, Json>),
}

/// A value, and what follows.
pub fn value(text: &str) -> Option<(Json, &str)> {
    let string = |text: &str| -> Option<(String, usize)> {
        let (mut out, mut chars) = (String::new(), text.char_indices().skip(1));
        loop {
            match chars.next()? {
                (at, '"') => return Some((out, at + 1)),
                (at, '\\') => match chars.next()?.1 {
                    'u' => {
                        let code = u32::from_str_radix(text.get(at + 2..at + 6)?, 16).ok()?;
                        out.push(char::from_u32(code)?);
                        chars.nth(3)?;
                    }
                    c @ ('"' | '\\') => out.push(c),
                    _ => return None,
                },
                (_, c) if u32::from(c) < 0x20 => return None,
                (_, c) => out.push(c),
            }
        }
    };
    match text.chars().next()? {
        '"' => string(text).map(|(s, end)| (Json::Text(s), &text[end..])),
        'n' => text.strip_prefix("null").map(|rest| (Json::Null, rest)),
        '[' => {
            let (mut all, mut rest) = (Vec::new(), &text[1..]);
            while !rest.starts_with(']') {
                let (v, tail) = value(rest)?;
                all.push(v);
                rest = tail.strip_prefix(',').filter(|r| !r.starts_with(']')).unwrap_or(tail);
            }
            Some((Json::List(all), &rest[1..]))
        }
        '{' => {
            let (mut all, mut rest) = (BTreeMap::new(), &text[1..]);
            while !rest.starts_with('}') {
                let (name, end) = string(rest).filter(|_| rest.starts_with('"'))?;
                let (v, tail) = value(rest[end..].strip_prefix(':')?)?;
                if all.insert(name, v).is_some() {
                    return None;
                }
                rest = tail.strip_prefix(',').filter(|r| !r.starts_with('}')).unwrap_or(tail);
            }
            Some((Json::Object(all), &rest[1..]))
        }
        _ => {
            let end = text.find([',', '}', ']']).unwrap_or(text.len());
            text[..end].parse().ok().map(|n| (Json::Number(n), &text[end..]))
        }
    }
}

#[test]
fn each_stream_is_in_the_text_where_it_is_asked_for() {
    apart(|| {
        let d = host(64 * MIB, true);
        let (pool, s) = (d.default_pool(), d.stream());
        let blocks = [pool.alloc(1000, s).unwrap(), pool.alloc(3 * MIB, s).unwrap(), d.alloc(5000).unwrap()];
        let json = |format| match value(&written(d, format)) {
            Some((Json::Object(all), "")) => all["streams"].clone(),
            other => panic!("{other:?}"),
        };
        assert_eq!(json(MILLPOND_STATS_JSON), Json::Null);
        let Json::List(all) = json(MILLPOND_STATS_JSON | MILLPOND_STATS_STREAMS) else { panic!() };
        let of = |stream: Json| {
            let found = all.iter().find_map(|j| match j {
                Json::Object(o) if o["stream"] == stream => Some(&o["memory"]),
                _ => None,
            });
            match found {
                Some(Json::Object(memory)) => memory.clone(),
                other => panic!("{other:?}"),
            }
        };
        let name = format!("{:#x}", s.0);
        let mine = of(Json::Number(s.0 as f64));
        assert_eq!(mine["blocks"], Json::Number(2.0));
        assert_eq!(mine["requested_bytes"], Json::Number(1000.0 + 3.0 * MIB as f64));
        assert_eq!(of(Json::Null)["requested_bytes"], Json::Number(5000.0));
        let page = |format| parse(&written(d, format)).unwrap_or_else(|e| panic!("{e}"));
        let at = |samples: &Samples, stream: &str| {
            let labels = [("device", "host:0"), ("stream", stream)];
            let labels: Labels = labels.map(|(n, v)| (n.to_owned(), v.to_owned())).into();
            samples.get(&("millpond_stream_blocks".to_owned(), labels)).copied()
        };
        assert_eq!(at(&page(MILLPOND_STATS_PROMETHEUS), &name), None);
        let with = page(MILLPOND_STATS_PROMETHEUS | MILLPOND_STATS_STREAMS);
        assert_eq!((at(&with, &name), at(&with, "none")), (Some(2.0), Some(1.0)));
        blocks.into_iter().for_each(|at| free(at).unwrap());
    });
}

#[test]
fn the_json_has_every_name() {
    apart(|| {
        let d = host(64 * MIB, true);
        let at = d.alloc(5000).unwrap();
        let text = written(d, MILLPOND_STATS_JSON);
        let Some((Json::Object(all), "")) = value(&text) else { panic!("{text}") };
        assert_eq!(all["device"], Json::Text("host:0".into()));
        assert_eq!(all["version"], Json::Number(1.0));
        let Json::Object(memory) = &all["memory"] else { panic!("{text}") };
        let told = read(d, None);
        for n in 0.. {
            let name = millpond_memory_stats_name(n);
            if name.is_null() {
                break;
            }
            let name = unsafe { CStr::from_ptr(name) }.to_str().unwrap();
            let want = match find(&told, name).unwrap() {
                u64::MAX => Json::Null,
                v => Json::Number(v as f64),
            };
            assert_eq!(memory[name], want, "{name}");
        }
        let (Json::List(pools), Json::Object(host)) = (&all["pools"], &all["host"]) else { panic!("{text}") };
        assert_eq!((pools.len(), host.contains_key("active_bytes.peak")), (1, true));
        free(at).unwrap();
        let mut needed = 0;
        let write = |format, at, room, needed: *mut usize| {
            outcome(unsafe { millpond_device_write_stats(ptr(d.0), format, at, room, needed) })
        };
        for format in [0, 7, MILLPOND_STATS_STREAMS, MILLPOND_STATS_JSON | 512] {
            assert_eq!(code(write(format, null_mut(), 0, &mut needed)), MILLPOND_E_INVALID_ARGUMENT);
        }
        assert_eq!(
            code(write(MILLPOND_STATS_JSON, null_mut(), 10, &mut needed)),
            MILLPOND_E_INVALID_ARGUMENT
        );
        assert_eq!(code(write(MILLPOND_STATS_JSON, null_mut(), 0, null_mut())), MILLPOND_E_INVALID_ARGUMENT);
    });
}

/// What is written of all devices that are open.
fn written_of_all(format: u32) -> String {
    let mut needed = 0;
    outcome(unsafe { millpond_write_stats(format, null_mut(), 0, &mut needed) }).unwrap();
    let mut text = vec![0u8; needed + 64];
    outcome(unsafe { millpond_write_stats(format, text.as_mut_ptr().cast(), text.len(), &mut needed) })
        .unwrap();
    CStr::from_bytes_until_nul(&text).unwrap().to_str().unwrap().to_owned()
}

#[test]
fn all_devices_are_on_one_page() {
    apart(|| {
        let d = host(64 * MIB, true);
        let other = Device::get("host", 1).unwrap();
        let at = [d.alloc(5000).unwrap(), other.alloc(7000).unwrap()];
        let page = written_of_all(MILLPOND_STATS_PROMETHEUS);
        let samples = parse(&page).unwrap(); // which refuses heads that come twice
        for (device, bytes) in [("host:0", 5000.0), ("host:1", 7000.0)] {
            let of = |name: &str, v: &f64, labels: &BTreeMap<String, String>| {
                name == "millpond_requested_bytes"
                    && labels.len() == 1
                    && labels["device"] == device
                    && *v == bytes
            };
            assert!(samples.iter().any(|((name, labels), v)| of(name, v, labels)), "{device}");
        }
        let text = written_of_all(MILLPOND_STATS_JSON);
        let Some((Json::Object(all), "")) = value(&text) else { panic!("{text}") };
        let Json::List(devices) = &all["devices"] else { panic!("{text}") };
        let names = devices.iter().map(|d| match d {
            Json::Object(d) => {
                d["device"] == Json::Text("host:0".into()) || d["device"] == Json::Text("host:1".into())
            }
            _ => false,
        });
        assert_eq!((names.filter(|&n| n).count(), devices.len()), (2, 2));
        at.into_iter().for_each(|p| free(p).unwrap());
        let mut needed = 0;
        let wrong = outcome(unsafe { millpond_write_stats(7, null_mut(), 0, &mut needed) });
        assert_eq!(code(wrong), MILLPOND_E_INVALID_ARGUMENT);
    });
}
