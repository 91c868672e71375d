//! How Python's `json.dumps` spells characters and numbers.

use std::fmt::Write as _;

/// Why a `fmt::Result` is not handed on.
const INFALLIBLE: &str = "writing to a String cannot fail";

/// Writes a character of a string: ASCII alone, lower-case hex, pairs above U+FFFF.
pub(super) fn character(out: &mut String, character: char) {
    match character {
        '"' => out.push_str("\\\""),
        '\\' => out.push_str("\\\\"),
        '\n' => out.push_str("\\n"),
        '\r' => out.push_str("\\r"),
        '\t' => out.push_str("\\t"),
        '\u{8}' => out.push_str("\\b"),
        '\u{c}' => out.push_str("\\f"),
        ' '..='~' => out.push(character),
        _ => {
            for unit in character.encode_utf16(&mut [0; 2]) {
                escape(out, *unit);
            }
        }
    }
}

fn escape(out: &mut String, unit: u16) {
    out.push_str("\\u");
    for shift in [12, 8, 4, 0] {
        let digit = usize::from(unit >> shift & 0xf);
        out.push(char::from(b"0123456789abcdef"[digit]));
    }
}

/// Writes an integer: its digits as they stand, but that there is no negative zero.
pub(super) fn integer(out: &mut String, spelt: &str) {
    out.push_str(if spelt == "-0" { "0" } else { spelt });
}

/// Writes a finite double as Python's `repr` does.
///
/// The shortest digits that read back as the same double are Rust's and Python's alike; only the
/// layout differs. Python takes the exponent form below 1e-4 and from 1e16 on, with a sign and at
/// least two digits in the exponent, and writes `.0` after an integral value otherwise.
pub(super) fn float(out: &mut String, value: f64) {
    if value == 0.0 || (1e-4..1e16).contains(&value.abs()) {
        write!(out, "{value}").expect(INFALLIBLE);
        if value.fract() == 0.0 {
            out.push_str(".0");
        }
        return;
    }
    let start = out.len();
    write!(out, "{value:e}").expect(INFALLIBLE);
    let Some(mark) = out[start..].find('e') else { return };
    let mut digits = start + mark + 1;
    if !out[digits..].starts_with('-') {
        out.insert(digits, '+');
    }
    digits += 1;
    if out.len() - digits < 2 {
        out.insert(digits, '0');
    }
}
