//! The words of JSON: white space, strings' characters, numbers, literals.
//!
//! A cursor stands on a character's first byte at all times, so slicing at it never panics.

use std::borrow::Cow;

use super::refusal::Refusal;

/// A place in a text, moving forward.
#[derive(Debug, Clone)]
pub(super) struct Cursor<'a> {
    text: &'a str,
    at: usize,
}

/// A number as it is spelt.
#[derive(Debug)]
pub(super) enum Number<'a> {
    /// No fraction and no exponent: any number of digits, kept as they are.
    Integer(&'a str),
    /// The rest: a double, as in Python.
    Float(&'a str),
}

/// The same byte in each of the eight of a word.
const fn eight(byte: u8) -> u64 {
    u64::from_le_bytes([byte; 8])
}

/// How many of eight bytes come before the first that does not stand in a string for itself, in
/// the text and in its canonical form: a control character, a quote, a backslash, or no ASCII.
///
/// Each term sets the high bit of such a byte. What one byte borrows or carries only reaches the
/// bytes after it, and only from a byte that has its own bit set, so the first bit is exact.
fn plain_of_eight(bytes: [u8; 8]) -> usize {
    let word = u64::from_le_bytes(bytes);
    let below_space = word.wrapping_sub(eight(b' '));
    let quote = (word ^ eight(b'"')).wrapping_sub(eight(1));
    let backslash = (word ^ eight(b'\\')).wrapping_sub(eight(1));
    let above_tilde = word | word.wrapping_add(eight(1));
    let marks = (below_space | quote | backslash | above_tilde) & eight(0x80);
    marks.trailing_zeros() as usize / 8
}

/// As [`plain_of_eight`] says of one byte.
fn is_plain(byte: u8) -> bool {
    matches!(byte, b' '..=b'~') && byte != b'"' && byte != b'\\'
}

impl<'a> Cursor<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self { text, at: 0 }
    }

    /// The byte offset that the cursor has come to.
    pub(super) fn at(&self) -> usize {
        self.at
    }

    pub(super) fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    /// Moves past the byte that `peek` showed, which must be ASCII.
    pub(super) fn skip(&mut self) {
        debug_assert!(self.peek().is_some_and(|byte| byte.is_ascii()));
        self.at += 1;
    }

    /// Moves past the white space of JSON, which is less than that of Unicode.
    pub(super) fn skip_blank(&mut self) {
        while let Some(b' ' | b'\n' | b'\r' | b'\t') = self.peek() {
            self.at += 1;
        }
    }

    /// The text from `start` to the cursor.
    pub(super) fn since(&self, start: usize) -> &'a str {
        &self.text[start..self.at]
    }

    /// The text from `start` to `end`, both places at which a cursor has stood.
    pub(super) fn between(&self, start: usize, end: usize) -> &'a str {
        &self.text[start..end]
    }

    /// What to say when what stands here is not what was expected.
    pub(super) fn unexpected(&self, expected: &'static str) -> Refusal {
        if self.at == self.text.len() {
            Refusal::Cut { at: self.at }
        } else {
            Refusal::Syntax { at: self.at, expected }
        }
    }

    /// Moves past `word`, for which its first letter was seen.
    pub(super) fn word(&mut self, word: &'static str) -> Result<(), Refusal> {
        let rest = self.rest();
        if rest.starts_with(word) {
            self.at += word.len();
            Ok(())
        } else if word.starts_with(rest) {
            Err(Refusal::Cut { at: self.text.len() })
        } else {
            Err(self.unexpected("a value"))
        }
    }

    /// Refuses what begins like no value, with a word of its own for what other writers print.
    pub(super) fn no_value(&self) -> Refusal {
        let digits = self.rest().strip_prefix('-').unwrap_or(self.rest());
        if digits.starts_with("NaN") || digits.starts_with("Infinity") {
            Refusal::NotANumber { at: self.at }
        } else {
            self.unexpected("a value")
        }
    }

    /// Moves past a run of plain characters of a string.
    pub(super) fn plain_run(&mut self) {
        let bytes = self.text.as_bytes();
        while let Some(eight) = bytes[self.at..].first_chunk() {
            let plain = plain_of_eight(*eight);
            self.at += plain;
            if plain < eight.len() {
                return;
            }
        }
        while bytes.get(self.at).is_some_and(|&byte| is_plain(byte)) {
            self.at += 1;
        }
    }

    /// Moves past a run of characters of a string that are not ASCII, or its last one, DEL.
    pub(super) fn wide_run(&mut self) -> &'a str {
        let start = self.at;
        while let Some(0x7f..) = self.peek() {
            self.at += 1;
        }
        self.since(start)
    }

    /// Moves past one character, whatever it is.
    pub(super) fn character(&mut self) -> Option<char> {
        let character = self.rest().chars().next()?;
        self.at += character.len_utf8();
        Some(character)
    }

    /// Moves past an escape, from its backslash; none for half of a surrogate pair.
    pub(super) fn escape(&mut self) -> Result<Option<char>, Refusal> {
        let start = self.at;
        self.skip();
        let character = match self.peek() {
            Some(b'u') => return self.unicode_escape(start),
            Some(same @ (b'"' | b'\\' | b'/')) => char::from(same),
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            Some(_) => return Err(Refusal::BadEscape { at: start }),
            None => return Err(Refusal::Cut { at: self.at }),
        };
        self.skip();
        Ok(Some(character))
    }

    /// Moves past `\uXXXX`, or past two of them that are a pair.
    fn unicode_escape(&mut self, start: usize) -> Result<Option<char>, Refusal> {
        let first = self.unit(start)?;
        self.at = start + UNIT_LEN;
        if !(0xd800..0xdc00).contains(&first) {
            return Ok(char::from_u32(u32::from(first)));
        }
        // A malformed second escape is no second half; the next step refuses it in its own right.
        let Ok(second) = self.unit(self.at) else { return Ok(None) };
        let pair = char::decode_utf16([first, second]).next().and_then(Result::ok);
        if pair.is_some() {
            self.at += UNIT_LEN;
        }
        Ok(pair)
    }

    /// The UTF-16 unit that `\uXXXX` at `start` spells.
    fn unit(&self, start: usize) -> Result<u16, Refusal> {
        let spelt = &self.text.as_bytes()[start..];
        let Some(digits) = spelt.strip_prefix(br"\u") else {
            return Err(Refusal::BadEscape { at: start });
        };
        let mut unit = 0;
        for &digit in digits.iter().take(UNIT_LEN - 2) {
            match char::from(digit).to_digit(16) {
                // Four digits of four bits fit.
                Some(value) => unit = unit << 4 | value as u16,
                None => return Err(Refusal::BadEscape { at: start }),
            }
        }
        if spelt.len() < UNIT_LEN { Err(Refusal::Cut { at: self.text.len() }) } else { Ok(unit) }
    }

    /// Moves past a number, for which a digit or a minus sign was seen.
    pub(super) fn number(&mut self) -> Result<Number<'a>, Refusal> {
        let start = self.at;
        if self.peek() == Some(b'-') {
            self.skip();
        }
        match self.peek() {
            // A digit after a leading zero is refused by whoever looks for what follows.
            Some(b'0') => self.skip(),
            Some(b'1'..=b'9') => self.digits()?,
            Some(b'I') => return Err(Cursor { at: start, ..*self }.no_value()),
            Some(_) | None => return Err(self.unexpected("a digit")),
        }
        let integer_end = self.at;
        if self.peek() == Some(b'.') {
            self.skip();
            self.digits()?;
        }
        if let Some(b'e' | b'E') = self.peek() {
            self.skip();
            if let Some(b'+' | b'-') = self.peek() {
                self.skip();
            }
            self.digits()?;
        }
        let spelt = self.since(start);
        Ok(if self.at == integer_end { Number::Integer(spelt) } else { Number::Float(spelt) })
    }

    /// Moves past one digit or more.
    fn digits(&mut self) -> Result<(), Refusal> {
        let start = self.at;
        while let Some(b'0'..=b'9') = self.peek() {
            self.at += 1;
        }
        if self.at == start { Err(self.unexpected("a digit")) } else { Ok(()) }
    }

    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }
}

/// The length of `\uXXXX`.
const UNIT_LEN: usize = 6;

/// The text that a string means, from what was read and found valid between its quotes.
pub(super) fn unescape(spelt: &str) -> Cow<'_, str> {
    if !spelt.contains('\\') {
        return Cow::Borrowed(spelt);
    }
    let mut text = String::with_capacity(spelt.len());
    let mut cursor = Cursor::new(spelt);
    while let Some(byte) = cursor.peek() {
        let character = match byte {
            // A lone surrogate was refused when it was read; here it only has to be something.
            b'\\' => cursor.escape().ok().flatten().unwrap_or(char::REPLACEMENT_CHARACTER),
            _ => match cursor.character() {
                Some(character) => character,
                None => break,
            },
        };
        text.push(character);
    }
    Cow::Owned(text)
}
