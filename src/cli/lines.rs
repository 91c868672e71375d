//! Jobs a line, from a file or standard input, each read up to a limit.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read as _};
use std::path::Path;

use bytes::Bytes;

use super::CliError;

/// A line and its number, from 1; blank lines are left out.
pub(super) struct Line {
    pub(super) number: usize,
    pub(super) text: Bytes,
}

/// The lines of a file, or of standard input where none or `-` is named.
pub(super) struct Lines {
    source: Box<dyn BufRead + Send>,
    number: usize,
    bytes_max: usize,
}

impl Lines {
    /// Lines longer than `bytes_max` come one byte longer than that and are told by it: a line is
    /// never held whole.
    pub(super) fn open(path: Option<&Path>, bytes_max: usize) -> Result<Self, CliError> {
        let source: Box<dyn BufRead + Send> = match path {
            None => Box::new(BufReader::new(io::stdin())),
            Some(path) if path == Path::new("-") => Box::new(BufReader::new(io::stdin())),
            Some(path) => match File::open(path) {
                Ok(file) => Box::new(BufReader::new(file)),
                Err(source) => {
                    return Err(CliError::Io {
                        what: format!("{} cannot be read", path.display()),
                        source,
                    });
                }
            },
        };
        Ok(Self { source, number: 0, bytes_max })
    }

    /// The next line; none at the end.
    pub(super) fn next(&mut self) -> Result<Option<Line>, CliError> {
        loop {
            self.number += 1;
            let text = self.read().map_err(|source| CliError::Io {
                what: "a job cannot be read".to_owned(),
                source,
            })?;
            match text {
                None => return Ok(None),
                Some(text) if text.iter().all(u8::is_ascii_whitespace) => {}
                Some(text) => return Ok(Some(Line { number: self.number, text: text.into() })),
            }
        }
    }

    fn read(&mut self) -> io::Result<Option<Vec<u8>>> {
        let limit = u64::try_from(self.bytes_max).unwrap_or(u64::MAX).saturating_add(1);
        let mut text = Vec::new();
        if self.source.by_ref().take(limit).read_until(b'\n', &mut text)? == 0 {
            return Ok(None);
        }
        if text.last() == Some(&b'\n') {
            text.pop();
        } else if text.len() > self.bytes_max {
            self.source.skip_until(b'\n')?;
        }
        if text.last() == Some(&b'\r') {
            text.pop();
        }
        Ok(Some(text))
    }
}
