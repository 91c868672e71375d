//! An object read member by member, as a message is: each value stands for itself.
//!
//! What is wrong with one value is kept with it, so that it can be said which field is wrong and
//! what the others hold.

use std::borrow::Cow;
use std::ops::Range;

use super::reader::Reader;
use super::refusal::{Kind, Refusal};

/// A member of the outermost object.
#[derive(Debug)]
pub(in crate::call) struct Field<'a> {
    /// Its name, unescaped.
    pub(in crate::call) name: Cow<'a, str>,
    /// Where its name stands in the text.
    pub(in crate::call) at: usize,
    /// Where its value stands in the text.
    pub(in crate::call) value: Range<usize>,
    /// Where its value stands in what was written.
    pub(in crate::call) written: Range<usize>,
    /// Why name or value cannot be carried.
    pub(in crate::call) refusal: Option<Refusal>,
}

/// An object read as far as it goes: what a job is decoded from, with all that can be said of it.
#[derive(Debug)]
pub(in crate::call) struct Envelope<'a> {
    /// The members that were read, duplicates included.
    pub(in crate::call) fields: Vec<Field<'a>>,
    /// The canonical forms of all values, by [`Field::written`].
    pub(in crate::call) canonical: String,
    /// What ended the reading before the text's end.
    pub(in crate::call) broken: Option<Refusal>,
}

/// Room for a message's fields.
const FIELDS_USUAL: usize = 9;

/// Reads an object member by member, and keeps what was read when it turns out to be broken.
pub(in crate::call) fn envelope(text: &str) -> Envelope<'_> {
    let mut reader = Reader::writing(text);
    let mut fields = Vec::with_capacity(FIELDS_USUAL);
    let broken = reader.object(&mut fields).err();
    // Refusals of values were handed to their fields; none is left to come back from here.
    let canonical = reader.finish().unwrap_or_default();
    Envelope { fields, canonical, broken }
}

impl<'a> Reader<'a> {
    /// Reads an object member by member, each value by the rules of a whole document.
    ///
    /// After an error `fields` holds the members that were read before it. Duplicates at this
    /// level are the caller's to refuse.
    pub(super) fn object(&mut self, fields: &mut Vec<Field<'a>>) -> Result<(), Refusal> {
        self.blank();
        if self.cursor.peek() != Some(b'{') {
            let found = Kind::of(self.document()?);
            return Err(Refusal::NotAnObject { found });
        }
        self.cursor.skip();
        self.blank();
        if self.cursor.peek() == Some(b'}') {
            self.cursor.skip();
            return self.end();
        }
        loop {
            fields.push(self.field()?);
            self.blank();
            match self.cursor.peek() {
                Some(b',') => self.cursor.skip(),
                Some(b'}') => break,
                Some(_) | None => return Err(self.cursor.unexpected("',' or '}'")),
            }
        }
        self.cursor.skip();
        self.end()
    }

    fn field(&mut self) -> Result<Field<'a>, Refusal> {
        let (at, name) = self.name()?;
        self.blank();
        let (start, written) = (self.cursor.at(), self.written());
        self.value()?;
        Ok(Field {
            name,
            at,
            value: start..self.cursor.at(),
            written: written..self.written(),
            refusal: self.refusal.take(),
        })
    }
}
