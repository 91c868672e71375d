//! How Python's `json.dumps` spells characters.

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

/// Whether an escape is already the one that [`character`] writes for what it means.
pub(super) fn is_own(escape: &str, character: char) -> bool {
    match character {
        '"' | '\\' | '\n' | '\r' | '\t' | '\u{8}' | '\u{c}' => escape.len() == 2,
        ' '..='~' => false,
        _ => !escape.bytes().any(|byte| byte.is_ascii_uppercase()),
    }
}
