//! One pass over a text: validates it and, where wanted, writes its canonical form.
//!
//! There is no tree. Members are written in the order in which they come, and put in order where
//! their object ends, if they were not. Most of a text stands in its canonical form as it is: it is
//! copied in runs, each up to the next thing that is left out or spelt otherwise. There is no
//! recursion either: what is open stands in a list, so that the depth of a hostile text costs memory
//! in proportion to its length and no stack.
//!
//! A broken text ends the pass. A text that is well-formed and cannot be carried is read to its
//! end, so that [`Refusal::is_syntax`] is exact; the first such refusal is kept.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::ops::Range;

use super::cursor::{Cursor, Number, unescape};
use super::refusal::Refusal;
use super::{INTEGER_DIGITS_MAX, LEVELS_MAX, PRIVATE_PREFIX, double, spelling};

/// Room for what most documents have open at once, so that the lists need not grow by and by.
const LEVELS_USUAL: usize = 8;
const MEMBERS_USUAL: usize = 16;

/// A reader and what it has written.
#[derive(Debug)]
pub(super) struct Reader<'a> {
    pub(super) cursor: Cursor<'a>,
    /// The canonical form of the text before `copied`; none where it is not wanted.
    out: Option<String>,
    /// From here to the cursor the text is its own canonical form, and not written yet.
    copied: usize,
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

/// What stands between a string's quotes.
struct Spelt<'a> {
    text: &'a str,
    is_escaped: bool,
}

/// A member of an open object.
#[derive(Debug)]
struct Member<'a> {
    /// The name's first bytes as a number, which puts most names in order by itself.
    first: u64,
    name: Cow<'a, str>,
    /// Where the name stands in the text.
    at: usize,
    /// Where the member, its name included, stands in what was written.
    written: Range<usize>,
}

// What is called for every token is inlined by force: left to the compiler, reading takes a fifth
// longer.
impl<'a> Reader<'a> {
    /// A reader that only validates.
    pub(super) fn checking(text: &'a str) -> Self {
        Self {
            cursor: Cursor::new(text),
            out: None,
            copied: 0,
            open: Vec::with_capacity(LEVELS_USUAL),
            members: Vec::with_capacity(MEMBERS_USUAL),
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
        self.blank();
        let start = self.cursor.at();
        self.value()?;
        let text = self.cursor.since(start);
        self.end()?;
        Ok(text)
    }

    /// What was written, or why the text cannot be carried.
    pub(super) fn finish(mut self) -> Result<String, Refusal> {
        self.copy();
        match self.refusal {
            Some(refusal) => Err(refusal),
            None => Ok(self.out.unwrap_or_default()),
        }
    }

    /// Refuses whatever follows the value.
    pub(super) fn end(&mut self) -> Result<(), Refusal> {
        self.blank();
        match self.cursor.peek() {
            None => Ok(()),
            Some(_) => Err(Refusal::Trailing { at: self.cursor.at() }),
        }
    }

    /// Reads one value with all that is in it.
    pub(super) fn value(&mut self) -> Result<(), Refusal> {
        loop {
            self.blank();
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
        self.cursor.skip();
        self.open.push(level);
        self.blank();
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
            self.blank();
            match self.cursor.peek() {
                Some(b',') => {
                    self.cursor.skip();
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
        self.cursor.skip();
    }

    /// Puts the members from `first` on in order, and refuses a name that is there twice.
    ///
    /// Rust orders text by its UTF-8 bytes, which is Python's order by code point.
    fn order(&mut self, first: usize) {
        if self.members[first..].is_sorted_by(|a, b| a.order(b).is_lt()) {
            return;
        }
        self.copy();
        let members = &mut self.members[first..];
        let start = members[0].written.start;
        members.sort_unstable_by(|a, b| a.order(b).then(a.at.cmp(&b.at)));
        let again = members.windows(2).filter(|pair| pair[0].order(&pair[1]).is_eq());
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
    #[inline(always)]
    fn member(&mut self) -> Result<(), Refusal> {
        let written = self.written();
        let (at, name) = self.name()?;
        self.members.push(Member {
            first: first_bytes(&name),
            name,
            at,
            written: written..written,
        });
        Ok(())
    }

    /// Reads a member's name and the colon after it.
    #[inline(always)]
    pub(super) fn name(&mut self) -> Result<(usize, Cow<'a, str>), Refusal> {
        self.blank();
        let at = self.cursor.at();
        if self.cursor.peek() != Some(b'"') {
            return Err(self.cursor.unexpected("a member name in double quotes"));
        }
        let Spelt { text, is_escaped } = self.string()?;
        let name = if is_escaped { unescape(text) } else { Cow::Borrowed(text) };
        if name.starts_with(PRIVATE_PREFIX) {
            self.refuse(Refusal::PrivateName { at });
        }
        self.blank();
        if self.cursor.peek() != Some(b':') {
            return Err(self.cursor.unexpected("':'"));
        }
        self.cursor.skip();
        Ok((at, name))
    }

    fn scalar(&mut self) -> Result<(), Refusal> {
        match self.cursor.peek() {
            Some(b'"') => self.string().map(drop),
            Some(b'-' | b'0'..=b'9') => self.number(),
            Some(b't') => self.cursor.word("true"),
            Some(b'f') => self.cursor.word("false"),
            Some(b'n') => self.cursor.word("null"),
            Some(_) | None => Err(self.cursor.no_value()),
        }
    }

    fn number(&mut self) -> Result<(), Refusal> {
        let at = self.cursor.at();
        match self.cursor.number()? {
            Number::Integer(spelt) => {
                if spelt.len() - usize::from(spelt.starts_with('-')) > INTEGER_DIGITS_MAX {
                    self.refuse(Refusal::HugeInteger { at });
                } else if spelt == "-0" {
                    // An integer has no negative zero.
                    self.instead(at, |out| out.push('0'));
                }
            }
            Number::Float(spelt) if double::is_repr(spelt) => {}
            Number::Float(spelt) => match double::read(spelt) {
                Some(value) => self.instead(at, |out| double::write(out, value)),
                None => self.refuse(Refusal::Overflow { at }),
            },
        }
        Ok(())
    }

    /// Reads a string and returns what stands between its quotes.
    #[inline(always)]
    fn string(&mut self) -> Result<Spelt<'a>, Refusal> {
        self.cursor.skip();
        let start = self.cursor.at();
        let mut is_escaped = false;
        loop {
            self.cursor.plain_run();
            let at = self.cursor.at();
            match self.cursor.peek() {
                Some(b'"') => break,
                Some(b'\\') => {
                    is_escaped = true;
                    self.escapes()?;
                }
                Some(0..0x20) => return Err(Refusal::ControlCharacter { at }),
                Some(_) => {
                    let run = self.cursor.wide_run();
                    self.instead(at, |out| {
                        run.chars().for_each(|wide| spelling::character(out, wide));
                    });
                }
                None => return Err(Refusal::Cut { at }),
            }
        }
        let text = self.cursor.since(start);
        self.cursor.skip();
        Ok(Spelt { text, is_escaped })
    }

    /// Reads a run of escapes: whole texts of some languages are written in them.
    fn escapes(&mut self) -> Result<(), Refusal> {
        while self.cursor.peek() == Some(b'\\') {
            let at = self.cursor.at();
            match self.cursor.escape()? {
                Some(_) if self.out.is_none() => {}
                Some(same) if spelling::is_own(self.cursor.since(at), same) => {}
                Some(other) => self.instead(at, |out| spelling::character(out, other)),
                None => self.refuse(Refusal::LoneSurrogate { at }),
            }
        }
        Ok(())
    }

    /// Moves past white space and leaves it out.
    #[inline(always)]
    pub(super) fn blank(&mut self) {
        if let Some(b' ' | b'\n' | b'\r' | b'\t') = self.cursor.peek() {
            self.copy();
            self.cursor.skip_blank();
            self.copied = self.cursor.at();
        }
    }

    /// Writes `spelling` for the text from `at` to the cursor.
    fn instead(&mut self, at: usize, spelling: impl FnOnce(&mut String)) {
        if let Some(out) = &mut self.out {
            out.push_str(self.cursor.between(self.copied, at));
            spelling(out);
        }
        self.copied = self.cursor.at();
    }

    /// Writes what is not written yet.
    fn copy(&mut self) {
        if let Some(out) = &mut self.out {
            out.push_str(self.cursor.since(self.copied));
        }
        self.copied = self.cursor.at();
    }

    /// How much has been written, or would have been.
    pub(super) fn written(&self) -> usize {
        let pending = self.cursor.at() - self.copied;
        self.out.as_ref().map_or(0, String::len) + pending
    }

    fn refuse(&mut self, refusal: Refusal) {
        self.refusal.get_or_insert(refusal);
    }
}

impl Member<'_> {
    /// The order of names, by their bytes.
    fn order(&self, other: &Self) -> Ordering {
        self.first.cmp(&other.first).then_with(|| self.name.cmp(&other.name))
    }
}

/// The first eight bytes of a name as a number that is ordered as they are; what a shorter name
/// lacks counts as zero, which nothing comes before.
fn first_bytes(name: &str) -> u64 {
    let bytes = name.as_bytes();
    match bytes.first_chunk() {
        Some(eight) => u64::from_be_bytes(*eight),
        None => {
            let short = bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
            // Of no bytes at all nothing has to be moved.
            short.checked_shl(64 - 8 * bytes.len() as u32).unwrap_or(0)
        }
    }
}

impl Level {
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
