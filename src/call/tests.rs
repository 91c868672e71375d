//! The documents of `tests/cases/vectors`: what Python does with each, and what we do.

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::canonical::{LEVELS_MAX, Refusal, canonical};
use super::job::{BadJob, DecodeError, Job, Limits};

macro_rules! vectors {
    ($name:literal) => {
        include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cases/vectors/", $name))
    };
}

/// What makes a key.
#[derive(Deserialize)]
struct Call<'a> {
    conversation_id: String,
    turn_index: u64,
    name: String,
    ordinal: u64,
    #[serde(borrow)]
    args: Option<&'a RawValue>,
}

impl Call<'_> {
    /// The body of a job with these arguments.
    fn body(&self, args: &[u8]) -> Vec<u8> {
        let text = |text| serde_json::to_string(text).unwrap();
        let (conversation, name) = (text(&self.conversation_id), text(&self.name));
        let (turn, ordinal) = (self.turn_index, self.ordinal);
        let head = format!(
            "{{\"conversation_id\":{conversation},\"turn_index\":{turn},\"name\":{name},\
             \"ordinal\":{ordinal},\"call_id\":\"toolu_1\",\"args\":"
        );
        [head.as_bytes(), args, b"}"].concat()
    }
}

fn decode(body: &[u8]) -> Result<Job, BadJob> {
    let body = Bytes::copy_from_slice(body);
    Job::decode(&body, Some("application/json"), None, &Limits::default())
}

fn key_of(body: &[u8]) -> String {
    decode(body).unwrap().key().to_string()
}

/// Every line of a file, of which there are `count`.
fn lines<'a, T: Deserialize<'a>>(file: &'a str, count: usize) -> Vec<T> {
    let lines: Vec<T> = file.lines().map(read).collect();
    assert_eq!(lines.len(), count);
    lines
}

fn read<'a, T: Deserialize<'a>>(line: &'a str) -> T {
    serde_json::from_str(line).unwrap()
}

fn base64(text: &str) -> Vec<u8> {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digit = |byte| DIGITS.iter().position(|&digit| digit == byte).unwrap() as u32;
    let mut bytes = Vec::new();
    for group in text.trim_end_matches('=').as_bytes().chunks(4) {
        let bits = group.iter().fold(0, |bits, &byte| bits << 6 | digit(byte));
        let group_bytes = (bits << (6 * (4 - group.len()))).to_be_bytes();
        bytes.extend_from_slice(&group_bytes[1..group.len()]);
    }
    bytes
}

#[test]
fn every_document_that_must_match_does() {
    #[derive(Deserialize)]
    struct Line<'a> {
        id: String,
        #[serde(flatten, borrow)]
        call: Call<'a>,
        args_raw_b64: String,
        canonical: String,
        key: String,
    }
    for line in lines::<Line<'_>>(vectors!("args-match.jsonl"), 109) {
        let args = base64(&line.args_raw_b64);
        let text = std::str::from_utf8(&args).unwrap();
        assert_eq!(canonical(text).as_ref(), Ok(&line.canonical), "{}", line.id);
        let job = decode(&line.call.body(&args)).unwrap();
        assert_eq!(job.key().to_string(), line.key, "{}", line.id);
        assert_eq!(job.args, text.trim_matches([' ', '\t', '\n', '\r']), "{}", line.id);
    }
}

#[test]
fn every_other_part_goes_into_the_key_as_python_puts_it() {
    #[derive(Deserialize)]
    struct Line<'a> {
        id: String,
        expected: String,
        key: Option<String>,
        #[serde(borrow)]
        collision: Option<Vec<Call<'a>>>,
    }
    let decode_call = |call: &Call<'_>| decode(&call.body(call.args.unwrap().get().as_bytes()));
    let (mut matches, mut collisions) = (0, 0);
    for text in vectors!("key-material.jsonl").lines() {
        let line: Line<'_> = read(text);
        if let Some(calls) = line.collision {
            let refused = calls.iter().filter(|call| decode_call(call).is_err()).count();
            assert_eq!(refused, 2, "{}", line.id);
            collisions += 1;
            continue;
        }
        let decoded = decode_call(&read(text));
        if line.expected == "match" {
            assert_eq!(Some(decoded.unwrap().key().to_string()), line.key, "{}", line.id);
            matches += 1;
        } else {
            let error = decoded.unwrap_err().error;
            assert!(matches!(error, DecodeError::Id { field: "conversation_id", .. }), "{error}");
        }
    }
    assert_eq!((matches, collisions), (10, 2));
}

#[test]
fn nesting_matches_up_to_the_limit_and_is_refused_by_name_over_it() {
    #[derive(Deserialize)]
    struct Line {
        id: String,
        r#gen: Shape,
        args_raw: Option<String>,
        key: Option<String>,
    }
    #[derive(Deserialize)]
    struct Shape {
        inner_levels: usize,
        total_levels: usize,
    }
    let call = Call {
        conversation_id: "conv-7f3a21".to_owned(),
        turn_index: 4,
        name: "send_payment".to_owned(),
        ordinal: 0,
        args: None,
    };
    for line in lines::<Line>(vectors!("args-depth.jsonl"), 5) {
        let inner = line.r#gen.inner_levels;
        let built = format!("{{\"a\":{}{}}}", "[".repeat(inner), "]".repeat(inner));
        let args = line.args_raw.unwrap_or(built);
        let decoded = decode(&call.body(args.as_bytes()));
        if line.r#gen.total_levels <= LEVELS_MAX {
            assert_eq!(Some(decoded.unwrap().key().to_string()), line.key, "{}", line.id);
        } else {
            let at = "{\"a\":".len() + LEVELS_MAX - 1;
            assert_eq!(canonical(&args), Err(Refusal::TooDeep { at }), "{}", line.id);
            let error = decoded.unwrap_err().error.to_string();
            assert!(error.contains("args") && error.contains("limit of 120 levels"), "{error}");
        }
    }
    // The last level that is taken, with the key that Python gives.
    let inner = LEVELS_MAX - 1;
    let args = format!("{{\"a\":{}{}}}", "[".repeat(inner), "]".repeat(inner));
    assert_eq!(key_of(&call.body(args.as_bytes())), "7f6e6664ce1d5eef95fcfb7c51e359e0");
}

#[test]
fn every_document_to_refuse_is_refused_for_its_own_reason() {
    #[derive(Deserialize)]
    struct Line {
        id: String,
        class: String,
        args_raw_b64: String,
    }
    let call = Call {
        conversation_id: "c".to_owned(),
        turn_index: 0,
        name: "t".to_owned(),
        ordinal: 0,
        args: None,
    };
    for line in lines::<Line>(vectors!("args-refuse.jsonl"), 26) {
        let args = base64(&line.args_raw_b64);
        let bad = decode(&call.body(&args)).unwrap_err();
        assert_eq!(bad.key, None, "{}", line.id);
        let id = line.id.as_str();
        if line.class == "encoding" {
            let error = decode(&args).unwrap_err().error;
            assert!(
                matches!(
                    (id, &error),
                    ("RG20", DecodeError::NotUtf8 { at: 6 })
                        | ("RG21", DecodeError::ByteOrderMark)
                        | ("RG22", DecodeError::WideUnicode)
                ),
                "{id}: {error}"
            );
            continue;
        }
        let refusal = canonical(std::str::from_utf8(&args).unwrap()).unwrap_err();
        let is_right = match line.class.as_str() {
            "duplicate-key" => matches!(refusal, Refusal::DuplicateName { .. }),
            "lone-surrogate" => matches!(refusal, Refusal::LoneSurrogate { .. }),
            "not-a-number" if id == "RG07" => matches!(refusal, Refusal::Overflow { .. }),
            "not-a-number" => matches!(refusal, Refusal::NotANumber { .. }),
            "huge-integer" => matches!(refusal, Refusal::HugeInteger { .. }),
            "private-name" => matches!(refusal, Refusal::PrivateName { .. }),
            "syntax" => refusal.is_syntax() && !matches!(refusal, Refusal::NotANumber { .. }),
            class => panic!("{id}: a class that is not known: {class}"),
        };
        assert!(is_right, "{id}: {refusal}");
        // In a message the same is said of args, unless it breaks the message.
        let of_args = matches!(bad.error, DecodeError::Refused { field: "args", .. });
        let of_message = matches!(bad.error, DecodeError::Json(_));
        assert_eq!((of_args, of_message), (!refusal.is_syntax(), refusal.is_syntax()), "{id}");
        assert_eq!(bad.name.unwrap().as_str(), "t", "{id}");
        assert_eq!(bad.call_id.unwrap().as_str(), "toolu_1", "{id}");
    }
}

#[test]
fn arguments_of_another_shape_are_refused_with_the_mend() {
    #[derive(Deserialize)]
    struct Line {
        id: String,
        job_body: String,
    }
    for line in lines::<Line>(vectors!("args-shape.jsonl"), 8) {
        let bad = decode(line.job_body.as_bytes()).unwrap_err();
        let id = line.id.as_str();
        let is_right = match id {
            "SG01" => bad.error == DecodeError::ArgsMissing,
            "SG02" => bad.error == DecodeError::ArgsNull,
            "SG03" | "SG07" | "SG08" => bad.error == DecodeError::ArgsText,
            _ => matches!(bad.error, DecodeError::ArgsNotObject { .. }),
        };
        assert!(is_right, "{id}: {}", bad.error);
        let message = bad.error.to_string();
        assert!(message.starts_with("args is ") && message.contains("send "), "{id}: {message}");
        assert_eq!(bad.call_id.unwrap().as_str(), "toolu_demo01", "{id}");
        assert_eq!((bad.name.unwrap().as_str(), bad.key), ("send_payment", None), "{id}");
    }
}

#[test]
fn a_wrong_type_in_another_field_is_refused_by_the_field_s_name() {
    #[derive(Deserialize)]
    struct Line {
        id: String,
        field: String,
        job_body: String,
    }
    for line in lines::<Line>(vectors!("envelope-refuse.jsonl"), 7) {
        let bad = decode(line.job_body.as_bytes()).unwrap_err();
        let message = bad.error.to_string();
        assert!(message.starts_with(&line.field), "{}: {message}", line.id);
        assert_eq!(bad.key, None, "{}", line.id);
        assert_eq!(bad.call_id.unwrap().as_str(), "toolu_demo01", "{}", line.id);
    }
}
