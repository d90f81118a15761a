// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Numbers and strings as a page or a table shows them.
//!
//! Not here: layout.

/// Text that is safe between tags and in quoted attributes.
pub fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            _ => safe.push(c),
        }
    }
    safe
}

/// A time with three digits and its unit: `42.1 µs`, `16.0 ms`.
pub fn time(ns: f64) -> String {
    let (value, unit) = match ns {
        ns if ns < 1e3 => (ns, "ns"),
        ns if ns < 1e6 => (ns / 1e3, "µs"),
        ns if ns < 1e9 => (ns / 1e6, "ms"),
        ns => (ns / 1e9, "s"),
    };
    format!("{} {unit}", three_digits(value))
}

/// Microseconds with one decimal: for columns that are compared downwards.
pub fn micros(ns: f64) -> String {
    group(&format!("{:.1}", ns / 1e3))
}

/// A share of the reference: `0.98 ×` near 1 and above, `1/34` well below.
pub fn ratio(value: f64, reference: f64) -> String {
    if value <= 0.0 || reference <= 0.0 {
        return "–".into();
    }
    let ratio = value / reference;
    if ratio < 0.4 {
        let times = 1.0 / ratio;
        return if times < 9.95 {
            format!("1/{times:.1}")
        } else {
            format!("1/{times:.0}")
        };
    }
    if ratio < 9.995 {
        format!("{ratio:.2} ×")
    } else {
        format!("{} ×", group(&format!("{ratio:.0}")))
    }
}

/// A rate of bits: `80.0 Mbit/s`.
pub fn bits(bits_per_s: f64) -> String {
    let (value, unit) = match bits_per_s {
        v if v < 1e3 => (v, "bit/s"),
        v if v < 1e6 => (v / 1e3, "kbit/s"),
        v if v < 1e9 => (v / 1e6, "Mbit/s"),
        v => (v / 1e9, "Gbit/s"),
    };
    format!("{} {unit}", three_digits(value))
}

/// A share of one: `0.3 %`, `12 %`, and `0 %` only for none at all.
pub fn share(part: f64) -> String {
    match part * 100.0 {
        p if p <= 0.0 => "0 %".into(),
        p if p < 0.001 => "< 0.001 %".into(),
        p if p < 0.0995 => format!("{p:.3} %"),
        p if p < 9.95 => format!("{p:.1} %"),
        p => format!("{p:.0} %"),
    }
}

/// "one", "two": small counts in a sentence.
pub fn number_word(value: usize) -> String {
    let words = [
        "none", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine",
    ];
    words
        .get(value)
        .map_or_else(|| value.to_string(), |word| (*word).into())
}

/// A count with thin spaces between groups of three.
pub fn count(value: u64) -> String {
    group(&value.to_string())
}

fn three_digits(value: f64) -> String {
    match value {
        v if v < 9.995 => format!("{v:.2}"),
        v if v < 99.95 => format!("{v:.1}"),
        v => format!("{v:.0}"),
    }
}

fn group(number: &str) -> String {
    let (whole, rest) = match number.find('.') {
        Some(dot) => number.split_at(dot),
        None => (number, ""),
    };
    let mut grouped = String::new();
    for (i, c) in whole.chars().enumerate() {
        if i > 0 && (whole.len() - i) % 3 == 0 {
            grouped.push('\u{202f}');
        }
        grouped.push(c);
    }
    grouped + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well() {
        assert_eq!(time(812.0), "812 ns");
        assert_eq!(time(42_090.0), "42.1 µs");
        assert_eq!(time(16_040_000.0), "16.0 ms");
        assert_eq!(micros(24_345_678.0), "24\u{202f}345.7");
        assert_eq!(count(1_234_567), "1\u{202f}234\u{202f}567");
        assert_eq!(count(123), "123");
        assert_eq!(ratio(42.0, 43.0), "0.98 ×");
        assert_eq!(ratio(1.0, 64.0), "1/64");
        assert_eq!(ratio(10.0, 27.0), "1/2.7");
        assert_eq!(ratio(149.96, 1.0), "150 ×");
        assert_eq!(ratio(1.0, 0.0), "–");
        assert_eq!(bits(80e6), "80.0 Mbit/s");
        assert_eq!(
            [
                share(0.0),
                share(2e-6),
                share(0.0004),
                share(0.056),
                share(0.999)
            ]
            .join(", "),
            "0 %, < 0.001 %, 0.040 %, 5.6 %, 100 %"
        );
        assert_eq!(escape("<a b=\"c\">&"), "&lt;a b=&quot;c&quot;&gt;&amp;");
    }
}
