//! What is taken, what is refused and by which words, and what a refusal still carries.

use proptest::prelude::*;

use super::*;
use crate::call::canonical::{Kind, Refusal};
use crate::call::key::{IdError, IndexError};

const KEY: &str = "0eb243dbd96aaf3995360445bec52dff";

fn decode(body: &str) -> Result<Job, BadJob> {
    decode_as(body.as_bytes(), Some("application/json"), None)
}

fn decode_as(body: &[u8], kind: Option<&str>, encoding: Option<&str>) -> Result<Job, BadJob> {
    Job::decode(&Bytes::copy_from_slice(body), kind, encoding, &Limits::default())
}

/// A good job with one field put in, replaced, or, by an empty value, taken away.
fn with(field: &str, value: &str) -> String {
    let mut fields = vec![
        ("conversation_id", "\"conv_42\""),
        ("turn_index", "7"),
        ("call_id", "\"toolu_1\""),
        ("name", "\"send_payment\""),
        ("args", "{\"note\": \"é\", \"invoice\": \"INV-1\", \"amount\": 1}"),
    ];
    fields.retain(|(name, _)| *name != field);
    if !value.is_empty() {
        fields.push((field, value));
    }
    let fields: Vec<_> =
        fields.iter().map(|(name, value)| format!("\"{name}\": {value}")).collect();
    format!("{{{}}}", fields.join(", "))
}

fn good() -> String {
    with("ordinal", "0")
}

/// The refusal of a job whose other fields are all good.
fn refused(field: &str, value: &str) -> DecodeError {
    let bad = decode(&with(field, value)).unwrap_err();
    assert_eq!(bad.call_id.is_some(), field != "call_id", "{field}: {value}");
    assert_eq!(bad.name.is_some(), field != "name", "{field}: {value}");
    assert!(bad.error.to_string().contains(field), "{} does not name {field}", bad.error);
    bad.error
}

#[test]
fn a_whole_job_is_decoded() {
    let body = Bytes::from_static(
        br#"{"conversation_id": "conv_81", "turn_index": 3, "ordinal": 1, "call_id": "toolu_01A",
        "response_id": "msg_01B", "name": "send_payment", "args": { "invoice" : "INV-7" },
        "expires_at": "2026-12-01T09:00:00Z", "meta": {"b": [1.0], "a": "\u00e9"}}"#,
    );
    let job = Job::decode(&body, None, None, &Limits::default()).unwrap();
    assert_eq!(job.conversation_id.as_str(), "conv_81");
    assert_eq!(job.turn_index.get(), 3);
    assert_eq!(job.ordinal.get(), 1);
    assert_eq!(job.name.as_str(), "send_payment");
    assert_eq!(job.call_id.as_ref().unwrap().as_str(), "toolu_01A");
    assert_eq!(job.response_id.as_ref().unwrap().as_str(), "msg_01B");
    assert_eq!(job.args, br#"{ "invoice" : "INV-7" }"#[..]);
    assert_eq!(job.meta.as_ref().unwrap(), &br#"{"b": [1.0], "a": "\u00e9"}"#[..]);
    assert_eq!(job.expires_at.unwrap().to_string(), "2026-12-01T09:00:00Z");
    // A slice of the message, not a copy.
    assert!(body.as_ptr_range().contains(&job.args.as_ptr()));
}

#[test]
fn what_may_be_missing_has_its_default() {
    let job = decode(&with("call_id", "")).unwrap();
    assert_eq!(job.ordinal.get(), 0);
    assert_eq!((job.call_id, job.response_id, job.meta, job.expires_at), (None, None, None, None));
    for field in ["call_id", "response_id", "meta", "expires_at"] {
        assert_eq!(decode(&with(field, "null")).unwrap().digest, job.digest, "{field}");
    }
}

#[test]
fn the_key_is_that_of_the_canonical_arguments() {
    assert_eq!(decode(&good()).unwrap().key().to_string(), KEY);
    assert_eq!(decode(&with("ordinal", "")).unwrap().key().to_string(), KEY);
    let spelt = with("args", r#"{"amount":1,"\u0069nvoice":"INV-1","note":"\u00E9"}"#);
    assert_eq!(decode(&spelt).unwrap().key().to_string(), KEY);
    let float = with("args", r#"{"amount":1.0,"invoice":"INV-1","note":"é"}"#);
    let float = decode(&float).unwrap();
    assert_eq!(float.key().to_string(), "272f4286af598a7a1acb6f644b8be822");
}

#[test]
fn what_is_carried_is_no_part_of_the_key() {
    for (field, value) in [
        ("call_id", "\"toolu_2\""),
        ("response_id", "\"msg_2\""),
        ("expires_at", "\"2026-12-01T09:00:00Z\""),
        ("meta", "{\"a\":1}"),
    ] {
        assert_eq!(decode(&with(field, value)).unwrap().key().to_string(), KEY, "{field}");
    }
    let escaped = good().replace("\"args\"", "\"\\u0061rgs\"").replace("conv_42", "conv\\u005f42");
    assert_eq!(decode(&escaped).unwrap().key().to_string(), KEY);
}

#[test]
fn arguments_that_are_no_object_are_refused_with_the_mend() {
    assert_eq!(refused("args", ""), DecodeError::ArgsMissing);
    assert_eq!(refused("args", "null"), DecodeError::ArgsNull);
    for text in ["\"\"", "\"null\"", "\"{}\"", r#""{\"path\":\"a.txt\",\"content\":\"abc""#] {
        assert_eq!(refused("args", text), DecodeError::ArgsText, "{text}");
    }
    for (value, found) in [("[{}]", Kind::Array), ("42", Kind::Number), ("true", Kind::Bool)] {
        assert_eq!(refused("args", value), DecodeError::ArgsNotObject { found });
    }
    assert_eq!(
        DecodeError::ArgsMissing.to_string(),
        "args is missing: send {} for a tool without parameters"
    );
    assert_eq!(
        DecodeError::ArgsText.to_string(),
        "args is text: send the object itself, not JSON inside a string"
    );
}

#[test]
fn arguments_that_cannot_be_carried_are_refused() {
    let at = with("args", "").len() + "\"args\": ".len() + 1;
    let why = |why| DecodeError::Refused { field: "args", why };
    let cases = [
        (r#"{"a":1,"a":2}"#, Refusal::DuplicateName { at: at + 7 }),
        (r#"{"a":"\ud83d"}"#, Refusal::LoneSurrogate { at: at + 6 }),
        (r#"{"a":1e400}"#, Refusal::Overflow { at: at + 5 }),
        (r#"{"$serde_json::private::Number":"1"}"#, Refusal::PrivateName { at: at + 1 }),
    ];
    for (args, refusal) in cases {
        assert_eq!(refused("args", args), why(refusal));
        assert_eq!(decode(&with("args", args)).unwrap_err().key, None);
    }
}

#[test]
fn an_index_that_is_no_plain_integer_is_refused_by_name() {
    for field in ["turn_index", "ordinal"] {
        for (value, found) in [
            ("\"4\"", Kind::Text),
            ("true", Kind::Bool),
            ("null", Kind::Null),
            ("[4]", Kind::Array),
            ("{}", Kind::Object),
        ] {
            let expected = DecodeError::WrongType { field, expected: "an integer", found };
            assert_eq!(refused(field, value), expected);
        }
        for value in ["4.0", "-0", "-1", "1e3", "9223372036854775808", "18446744073709551616"] {
            assert_eq!(refused(field, value), DecodeError::Index { field, why: IndexError });
        }
        let DecodeError::Refused { .. } = refused(field, "1e999") else { panic!("1e999 taken") };
        let most = decode(&with(field, "9223372036854775807")).unwrap();
        let index = if field == "ordinal" { most.ordinal.get() } else { most.turn_index.get() };
        assert_eq!(index, i64::MAX as u64);
    }
    assert_eq!(refused("turn_index", ""), DecodeError::Missing { field: "turn_index" });
}

#[test]
fn an_identifier_that_is_none_is_refused_by_name() {
    let keyed = ["conversation_id", "name"];
    for field in ["conversation_id", "name", "call_id", "response_id"] {
        for (value, found) in [("12345", Kind::Number), ("{}", Kind::Object), ("false", Kind::Bool)]
        {
            let expected = DecodeError::WrongType { field, expected: "text", found };
            assert_eq!(refused(field, value), expected);
        }
        let id = |why| DecodeError::Id { field, why };
        assert_eq!(refused(field, "\"\""), id(IdError::Empty));
        assert_eq!(refused(field, "\"a\\u0000\""), id(IdError::ControlCharacter));
        assert_eq!(refused(field, "\"a\\n\""), id(IdError::ControlCharacter));
        let DecodeError::Refused { .. } = refused(field, "\"\\ude00\"") else { panic!("{field}") };
        if keyed.contains(&field) {
            assert_eq!(refused(field, ""), DecodeError::Missing { field });
            let null = DecodeError::WrongType { field, expected: "text", found: Kind::Null };
            assert_eq!(refused(field, "null"), null);
            assert_eq!(refused(field, "\"a|b\""), id(IdError::Separator));
        }
        let bytes_max = if field == "conversation_id" { 1024 } else { 256 };
        let long = format!("\"{}\"", "x".repeat(bytes_max));
        decode(&with(field, &long)).unwrap();
        let long = format!("\"{}\"", "x".repeat(bytes_max + 1));
        assert_eq!(refused(field, &long), id(IdError::TooLong { bytes: bytes_max + 1, bytes_max }));
    }
}

#[test]
fn the_limits_are_the_caller_s() {
    let limits = Limits { message_bytes_max: 300, conversation_id_bytes_max: 7, id_bytes_max: 12 };
    let decode = |body: &str| Job::decode(&Bytes::from(body.to_owned()), None, None, &limits);
    decode(&good()).unwrap();
    for (field, value) in [("conversation_id", "\"conv_421\""), ("name", "\"send_payments\"")] {
        let DecodeError::Id { why: IdError::TooLong { .. }, .. } =
            decode(&with(field, value)).unwrap_err().error
        else {
            panic!("{field} taken")
        };
    }
    let fill = 300 - good().len();
    decode(&(good() + &" ".repeat(fill))).unwrap();
    let over = decode(&(good() + &" ".repeat(fill + 1))).unwrap_err();
    assert_eq!(over.error, DecodeError::TooLarge { bytes: 301, bytes_max: 300 });
    assert_eq!((over.call_id, over.name, over.key), (None, None, None));
}

#[test]
fn meta_is_an_object_by_the_same_rules() {
    let found = Kind::Array;
    let expected = DecodeError::WrongType { field: "meta", expected: "an object", found };
    assert_eq!(refused("meta", "[]"), expected);
    let deep = format!("{{\"a\":{}{}}}", "[".repeat(120), "]".repeat(120));
    let DecodeError::Refused { field: "meta", why: Refusal::TooDeep { .. } } =
        refused("meta", &deep)
    else {
        panic!("too deep a meta taken")
    };
    decode(&with("meta", &deep[1..].replace("\"a\":[", "{\"a\":").replace("]}", "}"))).unwrap();
}

#[test]
fn a_time_is_rfc_3339_and_nothing_else() {
    let take = |text: &str| decode(&with("expires_at", &format!("\"{text}\"")));
    for (text, expected) in [
        ("2026-12-01T09:00:00Z", "2026-12-01T09:00:00Z"),
        ("2026-12-01t09:00:00z", "2026-12-01T09:00:00Z"),
        ("2026-12-01T09:00:00.25+01:30", "2026-12-01T07:30:00.25Z"),
        ("2026-12-01T09:00:00.123456789-00:00", "2026-12-01T09:00:00.123456789Z"),
        ("2024-02-29T23:59:59-12:00", "2024-03-01T11:59:59Z"),
    ] {
        assert_eq!(take(text).unwrap().expires_at.unwrap().to_string(), expected);
    }
    for text in [
        "",
        "2026-12-01",
        "2026-12-01T09:00:00",
        "2026-12-01 09:00:00Z",
        "2026-12-01T09:00Z",
        "2026-12-01T09Z",
        "2026-12-01T09:00:00.Z",
        "2026-12-01T09:00:00,5Z",
        "2026-12-01T09:00:00+01",
        "2026-12-01T09:00:00+0100",
        "2026-12-01T09:00:00+01:00[Europe/Berlin]",
        "2026-12-01T09:00:00Z ",
        "+002026-12-01T09:00:00Z",
        "20261201T090000Z",
        "2026-13-01T09:00:00Z",
        "2026-02-29T09:00:00Z",
        "2026-12-01T25:00:00Z",
        "2026-12-01T09:00:00+99:00",
        "tomorrow",
        "1796115600",
    ] {
        let error = take(text).unwrap_err().error;
        assert_eq!(error, DecodeError::Time { field: "expires_at" }, "{text}");
    }
    let found = Kind::Number;
    let expected = DecodeError::WrongType { field: "expires_at", expected: "text", found };
    assert_eq!(refused("expires_at", "1796115600"), expected);
}

#[test]
fn an_unknown_field_is_refused_by_a_name_that_is_safe_to_log() {
    let unknown = |name: &str| DecodeError::UnknownField { name: name.to_owned() };
    let error = |name| decode(&with(name, "1")).unwrap_err().error;
    assert_eq!(error("Ordinal"), unknown("Ordinal"));
    assert_eq!(error("args "), unknown("args "));
    assert_eq!(error(""), unknown(""));
    assert_eq!(error("a\\u001b[31m\\\"é"), unknown("a\\u{1b}[31m\\\"\\u{e9}"));
    assert_eq!(error("\\ud83d"), unknown("\\u{fffd}"));
    let long = "x".repeat(100_000);
    assert_eq!(error(&long), unknown(&format!("{}...", "x".repeat(64))));
}

#[test]
fn a_field_given_twice_is_refused_by_name() {
    let whole = with("ordinal", "0").replacen(
        '{',
        "{\"response_id\": \"msg_1\", \"meta\": {}, \"expires_at\": \"2026-12-01T09:00:00Z\", ",
        1,
    );
    decode(&whole).unwrap();
    for field in [
        "conversation_id",
        "turn_index",
        "ordinal",
        "call_id",
        "response_id",
        "name",
        "args",
        "meta",
        "expires_at",
    ] {
        let escaped = format!("\\u{:04x}{}", field.as_bytes()[0], &field[1..]);
        for name in [field, &escaped] {
            let twice = whole.replacen('{', &format!("{{\"{name}\": null, "), 1);
            assert_eq!(decode(&twice).unwrap_err().error, DecodeError::DuplicateField { field });
        }
    }
}

#[test]
fn a_refusal_carries_the_key_where_only_another_field_is_wrong() {
    let key = |body: &str| decode(body).unwrap_err().key.map(|key| key.to_string());
    let known = Some(KEY.to_owned());
    for (field, value) in [
        ("call_id", "5"),
        ("response_id", "\"\""),
        ("meta", "{\"a\":1,\"a\":2}"),
        ("expires_at", "\"soon\""),
    ] {
        assert_eq!(key(&with(field, value)), known, "{field}");
    }
    assert_eq!(key(&good().replacen('{', "{\"priority\": 5,", 1)), known);
    // Without an ordinal the unknown field may be a mistyped one.
    assert_eq!(key(&with("ordnal", "1")), None);
    for (field, value) in
        [("name", "\"\""), ("args", "null"), ("turn_index", "\"7\""), ("ordinal", "null")]
    {
        assert_eq!(key(&with(field, value)), None, "{field}");
    }
}

#[test]
fn a_broken_message_carries_what_stood_before_the_break() {
    let whole = good();
    let bad = decode(&whole[..whole.len() - 1]).unwrap_err();
    assert_eq!(bad.error, DecodeError::Json(Refusal::Cut { at: whole.len() - 1 }));
    assert_eq!(bad.call_id.unwrap().as_str(), "toolu_1");
    assert_eq!(bad.name.unwrap().as_str(), "send_payment");
    assert_eq!(bad.key, None);
    let bad = decode("{\"name\":\"a\",\"call_id\":\"b").unwrap_err();
    assert_eq!((bad.name.unwrap().as_str(), bad.call_id), ("a", None));
    for body in
        ["", "[1,2,3]", "\"job\"", "null", "{\"conversation_id\":\"c\",\"turn_index\":", "{}{}"]
    {
        let DecodeError::Json(_) = decode(body).unwrap_err().error else { panic!("{body}") };
    }
}

#[test]
fn a_body_that_is_not_plain_utf_8_is_refused_by_name() {
    let error = |body: &[u8]| decode_as(body, None, None).unwrap_err().error;
    let body = good();
    assert_eq!(error(&[b"\xef\xbb\xbf", body.as_bytes()].concat()), DecodeError::ByteOrderMark);
    let wide: Vec<_> = body.encode_utf16().collect();
    let little: Vec<_> = wide.iter().flat_map(|unit| unit.to_le_bytes()).collect();
    let big: Vec<_> = wide.iter().flat_map(|unit| unit.to_be_bytes()).collect();
    let wider: Vec<_> = body.chars().flat_map(|c| u32::from(c).to_le_bytes()).collect();
    let widest: Vec<_> = body.chars().flat_map(|c| u32::from(c).to_be_bytes()).collect();
    for text in [little, big, wider, widest] {
        assert_eq!(error(&text), DecodeError::WideUnicode);
    }
    assert_eq!(error(b"\xff\xfe{\0}\0"), DecodeError::WideUnicode);
    assert_eq!(error(b"\xfe\xff\0{\0}"), DecodeError::WideUnicode);
    assert_eq!(error(b"{\"a\":\"\xff\"}"), DecodeError::NotUtf8 { at: 6 });
    // A surrogate and a slash in more bytes than it has.
    assert_eq!(error(b"{\"a\":\"\xed\xa0\xbd\"}"), DecodeError::NotUtf8 { at: 6 });
    assert_eq!(error(b"{\"a\":\"\xc0\xaf\"}"), DecodeError::NotUtf8 { at: 6 });
}

#[test]
fn only_json_as_it_is_is_taken() {
    let body = good();
    let take = |kind, encoding| decode_as(body.as_bytes(), kind, encoding).map_err(|bad| bad.error);
    for kind in [
        "",
        "application/json",
        "Application/JSON",
        "application/json; charset=utf-8",
        "application/json;charset=\"UTF-8\"",
        " application/json ; Charset = utf8 ; profile=x",
    ] {
        assert!(take(Some(kind), None).is_ok(), "{kind}");
    }
    for kind in [
        "text/plain",
        "application/json; charset=utf-16",
        "application/json; charset=",
        "application/jsonl",
        "application/vnd.api+json",
        "application/msgpack",
        "; charset=utf-16",
        " ",
    ] {
        let expected = DecodeError::ContentType { found: kind.to_owned() };
        assert_eq!(take(Some(kind), None).unwrap_err(), expected);
    }
    for encoding in ["", "identity", "Identity"] {
        assert!(take(None, Some(encoding)).is_ok(), "{encoding}");
    }
    for encoding in ["gzip", "utf-8", "identity, gzip"] {
        let expected = DecodeError::ContentEncoding { found: encoding.to_owned() };
        assert_eq!(take(None, Some(encoding)).unwrap_err(), expected);
    }
    let found = "\\u{1b}[31m".to_owned();
    assert_eq!(take(None, Some("\u{1b}[31m")).unwrap_err(), DecodeError::ContentEncoding { found });
}

#[test]
fn no_refusal_tells_an_argument() {
    for args in
        ["[\"hush\"]", "\"hush\"", r#"{"hush":1,"hush":2}"#, r#"{"a":"\ud83d hush"}"#, "hush"]
    {
        let bad = decode(&with("args", args)).unwrap_err();
        assert!(!format!("{} {bad:?}", bad.error).contains("hush"), "{}", bad.error);
    }
}

proptest! {
    #[test]
    fn no_body_makes_a_worker_panic(body: Vec<u8>) {
        prop_assert!(decode_as(&body, None, None).is_err());
    }

    #[test]
    fn no_change_of_a_job_makes_a_worker_panic(at in 0..300_usize, count in 0..3_usize, byte: u8) {
        let mut body = good().into_bytes();
        let at = at.min(body.len());
        let end = (at + count).min(body.len());
        body.splice(at..end, [byte]);
        if let Err(bad) = decode_as(&body, None, None) {
            prop_assert!(bad.error.to_string().is_ascii());
        }
    }
}
