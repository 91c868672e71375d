//! One pass over a text: validates it and, where wanted, writes its canonical form.
//!
//! There is no tree. Members are written in the order in which they come, and put in order where
//! their object ends, if they were not. There is no recursion either: what is open stands in a
//! list, so that the depth of a hostile text costs memory in proportion to its length and no stack.
//!
//! A broken text ends the pass. A text that is well-formed and cannot be carried is read to its
//! end, so that [`Refusal::is_syntax`] is exact; the first such refusal is kept.

use std::borrow::Cow;
use std::ops::Range;

use super::cursor::{Cursor, Number, unescape};
use super::refusal::Refusal;
use super::{INTEGER_DIGITS_MAX, LEVELS_MAX, PRIVATE_PREFIX, double, spelling};

/// A reader and what it has written.
#[derive(Debug)]
pub(super) struct Reader<'a> {
    pub(super) cursor: Cursor<'a>,
    /// The canonical form so far; none where it is not wanted.
    out: Option<String>,
    open: Vec<Level>,
    /// The members of all open objects.
    members: Vec<Member<'a>>,
    /// Where an object's members are put in order; kept for its memory.
    sorted: String,
    /// Why a text that is so far well-formed cannot be carried.
    pub(super) refusal: Option<Refusal>,
}

/// An array or object that is open.
#[derive(Debug, Clone, Copy)]
enum Level {
    Array,
    Object {
        /// Which of the reader's members is its first.
        first: usize,
    },
}

/// A member of an open object.
#[derive(Debug)]
struct Member<'a> {
    name: Cow<'a, str>,
    /// Where the name stands in the text.
    at: usize,
    /// Where the member, its name included, stands in what was written.
    written: Range<usize>,
}

impl<'a> Reader<'a> {
    /// A reader that only validates.
    pub(super) fn checking(text: &'a str) -> Self {
        Self {
            cursor: Cursor::new(text),
            out: None,
            open: Vec::new(),
            members: Vec::new(),
            sorted: String::new(),
            refusal: None,
        }
    }

    /// A reader that also writes the canonical form.
    pub(super) fn writing(text: &'a str) -> Self {
        Self { out: Some(String::with_capacity(text.len())), ..Self::checking(text) }
    }

    /// The text of the whole value that comes next; nothing may follow it.
    pub(super) fn document(&mut self) -> Result<&'a str, Refusal> {
        self.cursor.skip_blank();
        let start = self.cursor.at();
        self.value()?;
        let text = self.cursor.since(start);
        self.end()?;
        Ok(text)
    }

    /// What was written, or why the text cannot be carried.
    pub(super) fn finish(self) -> Result<String, Refusal> {
        match self.refusal {
            Some(refusal) => Err(refusal),
            None => Ok(self.out.unwrap_or_default()),
        }
    }

    /// Refuses whatever follows the value.
    pub(super) fn end(&mut self) -> Result<(), Refusal> {
        self.cursor.skip_blank();
        match self.cursor.peek() {
            None => Ok(()),
            Some(_) => Err(Refusal::Trailing { at: self.cursor.at() }),
        }
    }

    /// Reads one value with all that is in it.
    pub(super) fn value(&mut self) -> Result<(), Refusal> {
        loop {
            self.cursor.skip_blank();
            let opened = match self.cursor.peek() {
                Some(b'{') => self.open(Level::Object { first: self.members.len() })?,
                Some(b'[') => self.open(Level::Array)?,
                _ => {
                    self.scalar()?;
                    false
                }
            };
            if !opened && !self.another()? {
                return Ok(());
            }
        }
    }

    /// Opens an array or object; false if it is empty and has been closed again.
    fn open(&mut self, level: Level) -> Result<bool, Refusal> {
        if self.open.len() == LEVELS_MAX {
            self.refuse(Refusal::TooDeep { at: self.cursor.at() });
        }
        self.pass(level.opening());
        self.open.push(level);
        self.cursor.skip_blank();
        if self.cursor.peek() == Some(level.closing()) {
            self.close(level);
            return Ok(false);
        }
        if let Level::Object { .. } = level {
            self.member()?;
        }
        Ok(true)
    }

    /// Closes what ends after a value; true if another value follows, false if none is open.
    fn another(&mut self) -> Result<bool, Refusal> {
        while let Some(&level) = self.open.last() {
            let written = self.written();
            if let (Level::Object { .. }, Some(member)) = (level, self.members.last_mut()) {
                member.written.end = written;
            }
            self.cursor.skip_blank();
            match self.cursor.peek() {
                Some(b',') => {
                    self.pass(b',');
                    if let Level::Object { .. } = level {
                        self.member()?;
                    }
                    return Ok(true);
                }
                Some(byte) if byte == level.closing() => self.close(level),
                Some(_) | None => return Err(self.cursor.unexpected(level.expected())),
            }
        }
        Ok(false)
    }

    fn close(&mut self, level: Level) {
        if let Level::Object { first } = level {
            self.order(first);
            self.members.truncate(first);
        }
        self.open.pop();
        self.pass(level.closing());
    }

    /// Puts the members from `first` on in order, and refuses a name that is there twice.
    ///
    /// Rust orders text by its UTF-8 bytes, which is Python's order by code point.
    fn order(&mut self, first: usize) {
        let members = &mut self.members[first..];
        if members.is_sorted_by(|a, b| a.name < b.name) {
            return;
        }
        let start = members[0].written.start;
        members.sort_unstable_by(|a, b| a.name.cmp(&b.name).then(a.at.cmp(&b.at)));
        let again = members.windows(2).filter(|pair| pair[0].name == pair[1].name);
        if let Some(at) = again.map(|pair| pair[1].at).min() {
            self.refuse(Refusal::DuplicateName { at });
        } else if let (Some(out), None) = (&mut self.out, self.refusal) {
            // Only for what will be used: within the limit of levels this stays linear.
            self.sorted.clear();
            for member in members {
                self.sorted.push_str(&out[member.written.clone()]);
                self.sorted.push(',');
            }
            self.sorted.pop();
            out.truncate(start);
            out.push_str(&self.sorted);
        }
    }

    /// Reads a member up to its value.
    fn member(&mut self) -> Result<(), Refusal> {
        let written = self.written();
        let (at, name) = self.name()?;
        self.members.push(Member { name, at, written: written..written });
        Ok(())
    }

    /// Reads a member's name and the colon after it.
    pub(super) fn name(&mut self) -> Result<(usize, Cow<'a, str>), Refusal> {
        self.cursor.skip_blank();
        let at = self.cursor.at();
        if self.cursor.peek() != Some(b'"') {
            return Err(self.cursor.unexpected("a member name in double quotes"));
        }
        let name = unescape(self.string()?);
        if name.starts_with(PRIVATE_PREFIX) {
            self.refuse(Refusal::PrivateName { at });
        }
        self.cursor.skip_blank();
        if self.cursor.peek() != Some(b':') {
            return Err(self.cursor.unexpected("':'"));
        }
        self.pass(b':');
        Ok((at, name))
    }

    fn scalar(&mut self) -> Result<(), Refusal> {
        match self.cursor.peek() {
            Some(b'"') => self.string().map(|_| ()),
            Some(b'-' | b'0'..=b'9') => self.number(),
            Some(b't') => self.word("true"),
            Some(b'f') => self.word("false"),
            Some(b'n') => self.word("null"),
            Some(_) | None => Err(self.cursor.no_value()),
        }
    }

    fn word(&mut self, word: &'static str) -> Result<(), Refusal> {
        self.cursor.word(word)?;
        self.write(word);
        Ok(())
    }

    fn number(&mut self) -> Result<(), Refusal> {
        let at = self.cursor.at();
        match self.cursor.number()? {
            Number::Integer(spelt) => {
                if spelt.trim_start_matches('-').len() > INTEGER_DIGITS_MAX {
                    self.refuse(Refusal::HugeInteger { at });
                } else if let Some(out) = &mut self.out {
                    spelling::integer(out, spelt);
                }
            }
            Number::Float(spelt) => match double::read(spelt) {
                Some(value) => {
                    if let Some(out) = &mut self.out {
                        double::write(out, value);
                    }
                }
                None => self.refuse(Refusal::Overflow { at }),
            },
        }
        Ok(())
    }

    /// Reads a string and returns what stands between its quotes.
    fn string(&mut self) -> Result<&'a str, Refusal> {
        self.pass(b'"');
        let start = self.cursor.at();
        loop {
            let run = self.cursor.plain_run();
            self.write(run);
            let at = self.cursor.at();
            let character = match self.cursor.peek() {
                Some(b'"') => break,
                Some(b'\\') => self.cursor.escape()?,
                Some(0..0x20) => return Err(Refusal::ControlCharacter { at }),
                Some(_) => self.cursor.character(),
                None => return Err(Refusal::Cut { at }),
            };
            match (character, &mut self.out) {
                (Some(character), Some(out)) => spelling::character(out, character),
                (Some(_), None) => {}
                (None, _) => self.refuse(Refusal::LoneSurrogate { at }),
            }
        }
        let spelt = self.cursor.since(start);
        self.pass(b'"');
        Ok(spelt)
    }

    /// Moves past an ASCII byte that stands for itself, and writes it.
    fn pass(&mut self, byte: u8) {
        self.cursor.skip();
        if let Some(out) = &mut self.out {
            out.push(char::from(byte));
        }
    }

    fn write(&mut self, text: &str) {
        if let Some(out) = &mut self.out {
            out.push_str(text);
        }
    }

    /// How much has been written.
    pub(super) fn written(&self) -> usize {
        self.out.as_ref().map_or(0, String::len)
    }

    fn refuse(&mut self, refusal: Refusal) {
        self.refusal.get_or_insert(refusal);
    }
}

impl Level {
    fn opening(self) -> u8 {
        match self {
            Self::Array => b'[',
            Self::Object { .. } => b'{',
        }
    }

    fn closing(self) -> u8 {
        match self {
            Self::Array => b']',
            Self::Object { .. } => b'}',
        }
    }

    fn expected(self) -> &'static str {
        match self {
            Self::Array => "',' or ']'",
            Self::Object { .. } => "',' or '}'",
        }
    }
}
