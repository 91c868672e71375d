//! A tool's standard error as lines of the log, within bounds.

/// How many lines of one call are logged: enough for a backtrace.
const LINES_MAX: usize = 100;

/// How much of one line is logged.
const LINE_BYTES_MAX: usize = 1024;

/// How many bytes of one call are logged.
const BYTES_MAX: usize = 16 * 1024;

/// What a call has written to standard error.
pub(super) struct Errors {
    line: Vec<u8>,
    lines_left: usize,
    bytes_left: usize,
    bytes_left_out: u64,
}

impl Errors {
    pub(super) fn new() -> Self {
        let (lines_left, bytes_left) = (LINES_MAX, BYTES_MAX);
        Self { line: Vec::new(), lines_left, bytes_left, bytes_left_out: 0 }
    }

    pub(super) fn push(&mut self, chunk: &[u8]) {
        self.take(chunk, log);
    }

    /// Logs what is left of the last line, and how much was left out.
    pub(super) fn finish(mut self) {
        self.end_line(&mut log);
        if self.bytes_left_out > 0 {
            let bytes = self.bytes_left_out;
            tracing::info!(bytes, "more that the tool wrote to standard error was left out");
        }
    }

    fn take(&mut self, chunk: &[u8], mut log: impl FnMut(&str)) {
        for piece in chunk.split_inclusive(|byte| *byte == b'\n') {
            let (text, ends) = match piece.split_last() {
                Some((b'\n', text)) => (text, true),
                Some(_) | None => (piece, false),
            };
            let room = match self.lines_left {
                0 => 0,
                _ => self.bytes_left.min(LINE_BYTES_MAX - self.line.len()),
            };
            let kept = text.get(..room).unwrap_or(text);
            self.line.extend_from_slice(kept);
            self.bytes_left -= kept.len();
            self.bytes_left_out += (text.len() - kept.len()) as u64;
            if ends {
                self.end_line(&mut log);
            }
        }
    }

    fn end_line(&mut self, log: &mut impl FnMut(&str)) {
        if !self.line.is_empty() {
            log(String::from_utf8_lossy(&self.line).trim_end());
            self.line.clear();
            self.lines_left -= 1;
        }
    }
}

fn log(line: &str) {
    tracing::info!(line, "the tool wrote to standard error");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn logged(chunks: &[&[u8]]) -> (Vec<String>, u64) {
        let mut errors = Errors::new();
        let mut lines = Vec::new();
        for chunk in chunks {
            errors.take(chunk, |line| lines.push(line.to_owned()));
        }
        errors.end_line(&mut |line: &str| lines.push(line.to_owned()));
        (lines, errors.bytes_left_out)
    }

    #[test]
    fn a_line_is_logged_once_however_it_arrives() {
        let (lines, left_out) = logged(&[b"on", b"e\r\n\ntw", b"o\n", b"thr\xff\xffee"]);
        assert_eq!(lines, ["one", "two", "thr\u{fffd}\u{fffd}ee"]);
        assert_eq!(left_out, 0);
    }

    #[test]
    fn what_is_logged_of_a_call_is_bounded() {
        let long = vec![b'x'; 5000];
        let (lines, left_out) = logged(&[&long, b"\nshort\n"]);
        assert_eq!((lines[0].len(), &*lines[1]), (LINE_BYTES_MAX, "short"));
        assert_eq!(left_out, 5000 - 1024);

        let (lines, left_out) = logged(&[&b"ab\n"[..]; 150]);
        assert_eq!((lines.len(), left_out), (LINES_MAX, 100));

        let (lines, left_out) = logged(&[&[b'x'; 1023][..], b"\n"].repeat(30));
        assert_eq!(lines.iter().map(String::len).sum::<usize>(), BYTES_MAX);
        assert_eq!(left_out, 30 * 1023 - BYTES_MAX as u64);
    }
}
