//! The canonical form and the key against a real Python, document by document.
//!
//! Thousands of documents are made from a fixed seed, most of them valid in unusual spellings and
//! the rest damaged. One Python process judges them all, with its own standard library.

#![expect(clippy::unwrap_used, reason = "a test's helpers fail as the test itself does")]

mod documents;

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::thread;

use bytes::Bytes;
use callonce::call::canonical::{canonical, check};
use callonce::call::job::{Job, Limits};
use serde::Deserialize;

use documents::Documents;

const DOCUMENTS: usize = 6000;

#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(tag = "verdict", rename_all = "snake_case")]
enum Verdict {
    Taken { canonical: String, key: String },
    Refused,
    Broken,
}

/// A document, and the call that it is the arguments of.
struct Case {
    conversation: &'static str,
    turn: u64,
    name: &'static str,
    ordinal: u64,
    document: String,
}

impl Case {
    fn make(documents: &mut Documents) -> Self {
        Self {
            conversation: documents.pick(&["c", "conv_42", "会话-12", "\u{1F600} x"]),
            turn: documents.pick(&[0, 7, 2_147_483_648, i64::MAX as u64]),
            name: documents.pick(&["t", "send_payment", "calendar.respondToEvent", "é"]),
            ordinal: documents.pick(&[0, 1, 10]),
            document: documents.document(),
        }
    }

    /// What Python is to judge, as a JSON line.
    fn line(&self) -> String {
        let Self { conversation, turn, name, ordinal, document } = self;
        serde_json::to_string(&(conversation, turn, name, ordinal, document)).unwrap()
    }

    fn verdict(&self) -> Verdict {
        match canonical(&self.document) {
            Ok(canonical) => Verdict::Taken { canonical, key: self.key() },
            Err(refusal) if refusal.is_syntax() => Verdict::Broken,
            Err(_) => Verdict::Refused,
        }
    }

    /// The key of a job with this document as its arguments, by way of the whole decoding.
    fn key(&self) -> String {
        let Self { conversation, turn, name, ordinal, document } = self;
        let body = format!(
            "{{\"args\":{document},\"conversation_id\":{},\"turn_index\":{turn},\"name\":{},\
             \"ordinal\":{ordinal}}}",
            serde_json::to_string(conversation).unwrap(),
            serde_json::to_string(name).unwrap(),
        );
        let job = Job::decode(&Bytes::from(body), None, None, &Limits::default()).unwrap();
        job.key().to_string()
    }
}

/// Has one Python process judge all cases.
fn ask_python(cases: &[Case]) -> Vec<Verdict> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/oracle/python.py");
    let mut python = Command::new("python3")
        .args(["-I", script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("this test needs python3 (3.11 or later) in PATH: install it and run again");
    let mut stdin = python.stdin.take().unwrap();
    let lines: String = cases.iter().map(|case| case.line() + "\n").collect();
    let writer = thread::spawn(move || stdin.write_all(lines.as_bytes()));
    let output = python.wait_with_output().unwrap();
    assert!(output.status.success(), "python3 ended with {}", output.status);
    writer.join().unwrap().unwrap();
    let output = String::from_utf8(output.stdout).unwrap();
    output.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn every_document_has_python_s_canonical_form_and_key() {
    let mut documents = Documents::from_seed(0x5eed);
    let cases: Vec<_> = (0..DOCUMENTS).map(|_| Case::make(&mut documents)).collect();
    let verdicts = ask_python(&cases);
    assert_eq!(verdicts.len(), cases.len());
    let (mut taken, mut refused, mut damaged) = (0, 0, 0);
    for (case, expected) in cases.iter().zip(&verdicts) {
        assert_eq!(&case.verdict(), expected, "{}", case.document);
        match expected {
            Verdict::Taken { .. } => taken += 1,
            Verdict::Refused => refused += 1,
            Verdict::Broken => damaged += 1,
        }
        let broken = check(&case.document).is_err_and(|refusal| refusal.is_syntax());
        assert_eq!(broken, *expected == Verdict::Broken, "{}", case.document);
    }
    // A generator that has gone wrong must not pass for a canonical form that is right.
    assert!(taken > 3000 && refused > 300 && damaged > 500, "{taken}, {refused}, {damaged}");
}
