//! What Python prints, written out by hand; `tests/oracle` asks a real one.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use proptest::test_runner::TestRng;

use super::{
    INTEGER_DIGITS_MAX, Kind, LEVELS_MAX, Refusal, canonical, check, double, envelope, members,
};

/// The canonical form of a value, by way of an object.
fn of(value: &str) -> String {
    let object = canonical(&format!("{{\"a\":{value}}}")).unwrap();
    object.strip_prefix("{\"a\":").unwrap().strip_suffix('}').unwrap().to_owned()
}

fn refusal(value: &str) -> Refusal {
    let args = format!("{{\"a\":{value}}}");
    let refusal = canonical(&args).unwrap_err();
    assert_eq!(check(&args), Err(refusal), "{value}: check and canonical differ");
    refusal
}

/// Empty arrays in one another.
fn arrays(levels: usize) -> String {
    ["[".repeat(levels), "]".repeat(levels)].concat()
}

/// Objects in one another, each but the innermost with one member.
fn objects(levels: usize) -> String {
    ["{\"a\":".repeat(levels - 1), "{}".to_owned(), "}".repeat(levels - 1)].concat()
}

#[test]
fn members_are_sorted_and_white_space_is_gone() {
    let text = "\t{ \"b\" : [ 1 , { \"d\" : null , \"c\" : true } ] ,\r\n \"a\" : false } \n";
    assert_eq!(canonical(text).unwrap(), r#"{"a":false,"b":[1,{"c":true,"d":null}]}"#);
    assert_eq!(canonical("{}").unwrap(), "{}");
    assert_eq!(canonical(" { } ").unwrap(), "{}");
    assert_eq!(of("[ ]"), "[]");
    assert_eq!(of("[[],{},[{}]]"), "[[],{},[{}]]");
}

#[test]
fn names_are_sorted_by_code_point_of_what_they_mean() {
    // U+FFFF comes before U+10000, which UTF-16 would turn round; `é` spelt either way is one name.
    let text =
        "{\"\u{10000}\":1,\"\u{ffff}\":2,\"\\u00e9\":3,\"z\":4,\"\":5,\"a\\u0000\":6,\"a\":7}";
    let sorted = r#"{"":5,"a":7,"a\u0000":6,"z":4,"\u00e9":3,"\uffff":2,"\ud800\udc00":1}"#;
    assert_eq!(canonical(text).unwrap(), sorted);
    // The quote is sorted as a quote, not as the backslash that it is spelt with.
    assert_eq!(canonical(r##"{"#":1,"\"":2}"##).unwrap(), r##"{"\"":2,"#":1}"##);
    // A name that begins another comes first.
    assert_eq!(canonical(r#"{"ab":1,"a":2,"a!":3}"#).unwrap(), r#"{"a":2,"a!":3,"ab":1}"#);
}

#[test]
fn strings_are_spelt_as_python_spells_them() {
    assert_eq!(of("\"é\u{7f}\u{2028}\u{1F600}\""), r#""\u00e9\u007f\u2028\ud83d\ude00""#);
    assert_eq!(of(r#""\/\b\f\n\r\t\"\\""#), r#""/\b\f\n\r\t\"\\""#);
    assert_eq!(of(r#""\u002F\u0008\u000C\u000a\u000d\u0009\u0022\u005C""#), r#""/\b\f\n\r\t\"\\""#);
    assert_eq!(
        of(r#""\u0000\u001F\u0041\u00E9\uD83D\uDE00""#),
        r#""\u0000\u001fA\u00e9\ud83d\ude00""#
    );
    assert_eq!(of("\"<>&' ~\""), "\"<>&' ~\"");
}

#[test]
fn a_character_is_spelt_alike_wherever_it_stands() {
    let cases = [
        ("~", "~"),
        ("\u{7f}", "\\u007f"),
        ("\u{80}", "\\u0080"),
        ("\u{10ffff}", "\\udbff\\udfff"),
        ("\\\"", "\\\""),
        ("\\/", "/"),
        ("\\u00E9", "\\u00e9"),
    ];
    for (spelt, expected) in cases {
        for (before, after) in (0..20).flat_map(|before| (0..20).map(move |after| (before, after)))
        {
            let (before, after) = (" ".repeat(before), "!".repeat(after));
            let text = of(&format!("\"{before}{spelt}{after}\""));
            assert_eq!(text, format!("\"{before}{expected}{after}\""));
        }
        for before in 0..20 {
            let before = "#".repeat(before);
            for (bare, at) in [('\n', 6), ('\u{0}', 6), ('\u{1f}', 6)] {
                let at = at + before.len() + spelt.len();
                let refused = refusal(&format!("\"{before}{spelt}{bare}\""));
                assert_eq!(refused, Refusal::ControlCharacter { at });
            }
        }
    }
}

#[test]
fn numbers_are_spelt_as_python_spells_them() {
    let cases = [
        ("0", "0"),
        ("-0", "0"),
        ("-1", "-1"),
        ("123456789012345678901234567890", "123456789012345678901234567890"),
        ("-0.0", "-0.0"),
        ("0e0", "0.0"),
        ("1.0", "1.0"),
        ("1.10", "1.1"),
        ("1E5", "100000.0"),
        ("1e+5", "100000.0"),
        ("1e15", "1000000000000000.0"),
        ("9999999999999998.0", "9999999999999998.0"),
        ("9999999999999999.0", "1e+16"),
        ("1e16", "1e+16"),
        ("-1.5e16", "-1.5e+16"),
        ("1e-4", "0.0001"),
        ("0.00009999", "9.999e-05"),
        ("1e-5", "1e-05"),
        ("-1.25e-10", "-1.25e-10"),
        ("1e100", "1e+100"),
        ("1e22", "1e+22"),
        ("1e23", "1e+23"),
        ("123456789012345678901234567890.0", "1.2345678901234568e+29"),
        ("9007199254740993.0", "9007199254740992.0"),
        ("1.7976931348623157e308", "1.7976931348623157e+308"),
        ("5e-324", "5e-324"),
        ("2.4703282292062327e-324", "0.0"),
        ("2.4703282292062328e-324", "5e-324"),
        ("1e-400", "0.0"),
        ("-1e-400", "-0.0"),
        ("1e-99999999999999999999", "0.0"),
        ("0e99999999999999999999", "0.0"),
    ];
    for (number, expected) in cases {
        assert_eq!(of(number), expected, "{number}");
    }
}

#[test]
fn of_two_shortest_spellings_as_near_as_each_other_the_even_one_is_taken() {
    let cases = [
        // Exact: …834.25, …834.75, 0.50000762939453125 and 6.1511993408203125e-05.
        ("901840080277834.197302", "901840080277834.2"),
        ("-901840080277834.75", "-901840080277834.8"),
        ("0.50000762939453125", "0.5000076293945312"),
        ("0.000061511993408203125", "6.151199340820312e-05"),
        // Powers of two, to which the nearest spelling of this length is that of another double.
        ("5.684341886080802e-14", "5.684341886080802e-14"),
        ("6.189700196426902e26", "6.189700196426902e+26"),
    ];
    for (number, expected) in cases {
        assert_eq!(of(number), expected, "{number}");
    }
}

#[test]
fn an_exponent_that_a_row_of_zeros_makes_up_for_is_counted_whole() {
    for zeros in [59_990, 60_010, 65_536, 655_360, 700_000] {
        let (row, more) = ("0".repeat(zeros), zeros + 1);
        assert_eq!(of(&format!("0.{row}1e{more}")), "1.0");
        assert_eq!(of(&format!("-0.{row}125e{more:012}")), "-1.25");
        assert_eq!(of(&format!("1{row}.0e-{zeros}")), "1.0");
        assert_eq!(of(&format!("12{row}E-{zeros}")), "12.0");
        assert_eq!(of(&format!("-0.{row}e5")), "-0.0");
        let overflow = Refusal::Overflow { at: 5 };
        assert_eq!(refusal(&format!("0.{row}1e9999999999999999999999")), overflow);
        assert_eq!(of(&format!("1{row}.0e-9999999999999999999999")), "0.0");
    }
}

#[test]
fn broken_text_is_refused_and_the_place_is_said() {
    let (value, name) = ("a value", "a member name in double quotes");
    let syntax = |at, expected| Refusal::Syntax { at, expected };
    let cut = |at| Refusal::Cut { at };
    let cases = [
        ("", cut(0)),
        (" ", cut(1)),
        ("{", cut(1)),
        ("{\"a", cut(3)),
        ("{\"a\"", cut(4)),
        ("{\"a\":", cut(5)),
        ("{\"a\":1", cut(6)),
        ("{\"a\":1,", cut(7)),
        ("{\"a\":tru", cut(8)),
        ("{\"a\":-", cut(6)),
        ("{\"a\":1.", cut(7)),
        ("{\"a\":1e", cut(7)),
        ("{\"a\":1e-", cut(8)),
        ("{\"a\":\"\\", cut(7)),
        ("{\"a\":\"\\u00e", cut(11)),
        ("{\"a\":[", cut(6)),
        ("{\"a\":1,}", syntax(7, name)),
        ("{,}", syntax(1, name)),
        ("{'a':1}", syntax(1, name)),
        ("{a:1}", syntax(1, name)),
        ("{1:1}", syntax(1, name)),
        ("{\"a\" 1}", syntax(5, "':'")),
        ("{\"a\":1 \"b\":2}", syntax(7, "',' or '}'")),
        ("{\"a\":[1 2]}", syntax(8, "',' or ']'")),
        ("{\"a\":[1}", syntax(7, "',' or ']'")),
        ("{\"a\":1]", syntax(6, "',' or '}'")),
        ("{\"a\":[1,]}", syntax(8, value)),
        ("{\"a\":[,1]}", syntax(6, value)),
        ("{\"a\":01}", syntax(6, "',' or '}'")),
        ("{\"a\":-01}", syntax(7, "',' or '}'")),
        ("{\"a\":+1}", syntax(5, value)),
        ("{\"a\":.5}", syntax(5, value)),
        ("{\"a\":5.}", syntax(7, "a digit")),
        ("{\"a\":1e}", syntax(7, "a digit")),
        ("{\"a\":0x10}", syntax(6, "',' or '}'")),
        ("{\"a\":--1}", syntax(6, "a digit")),
        ("{\"a\":True}", syntax(5, value)),
        ("{\"a\":nul}", syntax(5, value)),
        ("{\"a\":undefined}", syntax(5, value)),
        ("\u{feff}{}", syntax(0, value)),
        ("\u{a0}{}", syntax(0, value)),
        ("{}\u{c}", Refusal::Trailing { at: 2 }),
        ("{} {}", Refusal::Trailing { at: 3 }),
        ("{}}", Refusal::Trailing { at: 2 }),
        ("{\"a\":\"\n\"}", Refusal::ControlCharacter { at: 6 }),
        ("{\"a\u{0}\":1}", Refusal::ControlCharacter { at: 3 }),
        ("{\"a\u{1f}\":1}", Refusal::ControlCharacter { at: 3 }),
        ("{\"a\":\"\\x\"}", Refusal::BadEscape { at: 6 }),
        ("{\"a\":\"\\U0041\"}", Refusal::BadEscape { at: 6 }),
        ("{\"a\":\"\\u00g0\"}", Refusal::BadEscape { at: 6 }),
        ("{\"a\":\"\\u+041\"}", Refusal::BadEscape { at: 6 }),
        ("{\"a\":\"\\u00\"}", Refusal::BadEscape { at: 6 }),
        ("{\"a\":\"\\ud83d\\u00\"}", Refusal::BadEscape { at: 12 }),
        ("{\"a\":\"\\u00\u{e9}\"}", Refusal::BadEscape { at: 6 }),
        ("{\"a\":NaN}", Refusal::NotANumber { at: 5 }),
        ("{\"a\":Infinity}", Refusal::NotANumber { at: 5 }),
        ("{\"a\":-Infinity}", Refusal::NotANumber { at: 5 }),
    ];
    for (text, expected) in cases {
        assert_eq!(canonical(text), Err(expected), "{text}");
        assert_eq!(check(text), Err(expected), "{text}");
        assert!(expected.is_syntax(), "{text}");
    }
}

#[test]
fn every_cut_of_a_text_is_refused_as_cut() {
    let text = r#"{"a":[1,-2.5e+3,"\ud83d\ude00\n",true,false,null,{}],"b":{"c":[]}}"#;
    canonical(text).unwrap();
    for end in 0..text.len() {
        assert_eq!(canonical(&text[..end]), Err(Refusal::Cut { at: end }), "{}", &text[..end]);
    }
}

#[test]
fn a_name_given_twice_is_refused_in_whatever_spelling() {
    let again = |args| canonical(args).unwrap_err();
    assert_eq!(again(r#"{"a":1,"a":1}"#), Refusal::DuplicateName { at: 7 });
    assert_eq!(again(r#"{"a":1,"b":2,"\u0061":3}"#), Refusal::DuplicateName { at: 13 });
    assert_eq!(again(r#"{"é":1,"\u00e9":3}"#), Refusal::DuplicateName { at: 8 });
    assert_eq!(again(r#"{"\ud83d\ude00":1,"😀":3}"#), Refusal::DuplicateName { at: 18 });
    assert_eq!(again(r#"{"/":1,"\/":3}"#), Refusal::DuplicateName { at: 7 });
    assert_eq!(again(r#"{"":1,"":3}"#), Refusal::DuplicateName { at: 6 });
    assert_eq!(refusal(r#"[{"x":{"b":1,"a":2,"b":3}}]"#), Refusal::DuplicateName { at: 24 });
    // Two spellings that Unicode calls equivalent are two names; so are equal names elsewhere.
    assert_eq!(
        of(r#"{"\u00e9":1,"e\u0301":{"\u00e9":1}}"#),
        r#"{"e\u0301":{"\u00e9":1},"\u00e9":1}"#
    );
    assert_eq!(of(r#"[{"a":1},{"a":1}]"#), r#"[{"a":1},{"a":1}]"#);
}

#[test]
fn half_of_a_surrogate_pair_is_refused() {
    let lone = |offset: usize| Refusal::LoneSurrogate { at: 5 + offset };
    for text in
        [r#""\ud83d""#, r#""\ude00""#, r#""\ud83d x""#, r#""\uDBFF\u0041""#, r#""\ud83d\n""#]
    {
        assert_eq!(refusal(text), lone(1), "{text}");
    }
    assert_eq!(refusal(r#""\ude00\ud83d""#), lone(1));
    assert_eq!(refusal(r#""\ud83d\ude00\ude00""#), lone(13));
    assert_eq!(refusal(r#""\ud83d\ud83d\ude00""#), lone(1));
    assert_eq!(refusal(r#"{"\ud83d":1}"#), lone(2));
}

#[test]
fn an_integer_may_have_as_many_digits_as_python_reads() {
    let most = "1".repeat(INTEGER_DIGITS_MAX);
    assert_eq!(of(&most), most);
    assert_eq!(of(&format!("-{most}")), format!("-{most}"));
    assert_eq!(refusal(&format!("{most}1")), Refusal::HugeInteger { at: 5 });
    assert_eq!(refusal(&format!("-{most}1")), Refusal::HugeInteger { at: 5 });
    // A double has no such limit.
    assert_eq!(of(&format!("0.{most}{most}")), "0.1111111111111111");
    assert_eq!(refusal(&format!("{most}1.0")), Refusal::Overflow { at: 5 });
}

#[test]
fn a_number_beyond_the_doubles_is_refused() {
    assert_eq!(of("1.7976931348623158e308"), "1.7976931348623157e+308");
    for number in ["1.7976931348623159e308", "1e309", "-1e400", "1e99999999999999999999"] {
        assert_eq!(refusal(number), Refusal::Overflow { at: 5 }, "{number}");
    }
}

#[test]
fn a_library_s_private_names_are_refused() {
    let private = |at| Refusal::PrivateName { at };
    assert_eq!(refusal(r#"{"$serde_json::private::Number":"1"}"#), private(6));
    assert_eq!(refusal(r#"[{"x":1,"\u0024serde_json::private::RawValue":"1"}]"#), private(13));
    assert_eq!(refusal(r#"{"$serde_json::private::":1}"#), private(6));
    assert_eq!(of(r#"{"$serde_json::privat":1}"#), r#"{"$serde_json::privat":1}"#);
    assert_eq!(of(r#""$serde_json::private::Number""#), r#""$serde_json::private::Number""#);
}

#[test]
fn nesting_is_refused_from_the_first_level_over_the_limit() {
    let most = objects(LEVELS_MAX);
    assert_eq!(canonical(&most).unwrap(), most);
    let over = objects(LEVELS_MAX + 1);
    assert_eq!(canonical(&over), Err(Refusal::TooDeep { at: 5 * LEVELS_MAX }));
    let most = arrays(LEVELS_MAX - 1);
    assert_eq!(of(&most), most);
    assert_eq!(refusal(&arrays(LEVELS_MAX)), Refusal::TooDeep { at: 4 + LEVELS_MAX });
    // Levels are counted down again: many side by side are no depth.
    let beside = format!("[{}]", ["[[[]]]"; 200].join(","));
    assert_eq!(of(&beside), beside);
    assert!(Refusal::TooDeep { at: 0 }.to_string().contains("limit of 120 levels"));
}

#[test]
fn text_that_is_broken_anywhere_is_called_broken() {
    let deep = "[".repeat(1000);
    let broken = [
        r#"{"a":1,"a":2"#.to_owned(),
        r#"{"a":"\ud83d","b":}"#.to_owned(),
        r#"{"a":1e999,"b":nope}"#.to_owned(),
        format!("{{\"a\":{}x}}", "1".repeat(5000)),
        format!("{{\"a\":{deep}"),
        format!("{{\"a\":{deep}{}", "}".repeat(1000)),
        r#"{"$serde_json::private::X":1}}"#.to_owned(),
        r#"[1,2"#.to_owned(),
    ];
    for text in broken {
        assert!(canonical(&text).unwrap_err().is_syntax(), "{text}");
        assert!(check(&text).unwrap_err().is_syntax(), "{text}");
    }
    let whole = [
        r#"{"a":{"b":1,"b":2}}"#,
        r#"{"a":"\ud83d"}"#,
        r#"{"a":1e999}"#,
        r#"{"$serde_json::private::X":1}"#,
    ];
    for text in whole {
        assert!(!canonical(text).unwrap_err().is_syntax(), "{text}");
    }
    assert!(!check(&arrays(100_000)).unwrap_err().is_syntax());
    assert!(!check(&"1".repeat(4301)).unwrap_err().is_syntax());
}

#[test]
fn only_an_object_has_a_canonical_form_and_any_value_can_be_checked() {
    let values = [
        ("[]", Kind::Array),
        (" \"{}\" ", Kind::Text),
        ("-1", Kind::Number),
        ("0.5", Kind::Number),
        ("true", Kind::Bool),
        ("false", Kind::Bool),
        ("null", Kind::Null),
    ];
    for (text, found) in values {
        assert_eq!(canonical(text), Err(Refusal::NotAnObject { found }), "{text}");
        assert_eq!(members(text), Err(Refusal::NotAnObject { found }), "{text}");
        assert_eq!(check(text), Ok(()), "{text}");
    }
    assert!(!Refusal::NotAnObject { found: Kind::Array }.is_syntax());
    assert_eq!(canonical("[1"), Err(Refusal::Cut { at: 2 }));
}

#[test]
fn members_come_in_their_order_with_their_raw_text() {
    let text = " { \"b\" : [ 1 , 2 ] , \"\\u0061\":\"\\u0061\" ,\"c\":-0.0} ";
    let raw: Vec<_> = members(text).unwrap();
    let raw: Vec<_> = raw.iter().map(|(name, value)| (&**name, *value)).collect();
    assert_eq!(raw, [("b", "[ 1 , 2 ]"), ("a", "\"\\u0061\""), ("c", "-0.0")]);
    assert_eq!(members(" { } "), Ok(Vec::new()));
    assert_eq!(members(r#"{"a":1,"b":2,"\u0061":3}"#), Err(Refusal::DuplicateName { at: 13 }));
    assert_eq!(members(r#"{"a":1,"b":{"x":1,"x":2}}"#), Err(Refusal::DuplicateName { at: 18 }));
    assert_eq!(members(r#"{"$serde_json::private::X":1}"#), Err(Refusal::PrivateName { at: 1 }));
    assert_eq!(members("{} x"), Err(Refusal::Trailing { at: 3 }));
    assert_eq!(members("{\"a\":1"), Err(Refusal::Cut { at: 6 }));
}

#[test]
fn each_member_s_value_has_the_levels_of_a_whole_text() {
    let most = objects(LEVELS_MAX);
    assert_eq!(members(&format!("{{\"args\":{most}}}")).unwrap(), [("args".into(), &*most)]);
    let over = objects(LEVELS_MAX + 1);
    let at = 8 + 5 * LEVELS_MAX;
    assert_eq!(members(&format!("{{\"args\":{over}}}")), Err(Refusal::TooDeep { at }));
}

#[test]
fn an_envelope_keeps_what_was_read_before_it_broke() {
    let read = envelope(r#"{"a":{"y":1,"x":2},"b":"\ud83d","c":[{"e":1,"d":2}],"d":}"#);
    assert_eq!(read.broken, Some(Refusal::Syntax { at: 56, expected: "a value" }));
    let names: Vec<_> = read.fields.iter().map(|field| &*field.name).collect();
    assert_eq!(names, ["a", "b", "c"]);
    let written = |field: usize| &read.canonical[read.fields[field].written.clone()];
    assert_eq!(written(0), r#"{"x":2,"y":1}"#);
    assert_eq!(read.fields[1].refusal, Some(Refusal::LoneSurrogate { at: 24 }));
    assert_eq!(read.fields[2].refusal, None);
    assert_eq!(written(2), r#"[{"d":2,"e":1}]"#);
}

#[test]
fn a_message_holds_nothing_of_the_text() {
    let texts = [
        r#"{"hush":"hush","hush":1}"#,
        r#"{"hush":"\ud83d hush"}"#,
        r#"{"hush":hush}"#,
        r#"{"hush":"hush\q"}"#,
        r#"{"$serde_json::private::hush":1}"#,
        r#""hush""#,
    ];
    for text in texts {
        let refusal = canonical(text).unwrap_err();
        assert!(!format!("{refusal} {refusal:?}").contains("hush"), "{refusal}");
    }
}

#[test]
fn hostile_texts_take_linear_time_and_no_stack() {
    const BYTES: usize = 1024 * 1024;
    // Each takes about a second, unoptimised; quadratic work would take minutes.
    let unsorted = r#"{"b":1,"a":"#;
    let levels = 4 * BYTES / unsorted.len();
    let many: Vec<_> = (0..100_000).rev().map(|n| format!("\"k{n}\":{n}")).collect();
    let prefix = "p".repeat(1000);
    let alike: Vec<_> = (0..1000).rev().map(|n| format!("\"{prefix}{n:04}\":1")).collect();
    let texts = [
        "[".repeat(BYTES),
        "{\"a\":".repeat(BYTES / 5),
        arrays(BYTES / 2),
        [unsorted.repeat(levels), "0".into(), "}".repeat(levels)].concat(),
        [unsorted.repeat(119), "[".into(), "0,".repeat(BYTES / 2), "0]".into(), "}".repeat(119)]
            .concat(),
        format!("{{{}}}", many.join(",")),
        format!("{{{}}}", alike.join(",")),
        format!("{{\"{}\":1}}", "\\u0061".repeat(BYTES / 6)),
        format!("{{\"{}\":1}}", "\u{10000}".repeat(BYTES / 4)),
        format!("{{\"a\":\"{}", "\\".repeat(BYTES)),
        format!("{{\"a\":{}", "1".repeat(BYTES)),
        format!("{{\"a\":0.{}1e-9}}", "0".repeat(BYTES)),
        format!("{{\"a\":[{}1]}}", "1.2345678901234567e-300,".repeat(BYTES / 24)),
        format!("{{{}\"b\":1}}", "\"a\":1,".repeat(BYTES / 6)),
    ];
    for text in &texts {
        let start = Instant::now();
        let whole = canonical(text).is_ok();
        assert_eq!(whole, check(text).is_ok(), "{}", &text[..40]);
        let took = start.elapsed();
        assert!(took < Duration::from_secs(30), "{}: took {took:?}", &text[..40]);
    }
}

/// A value, with names that sort differently by byte, by code point and as they are spelt.
#[derive(Debug, Clone)]
enum Value {
    Word(String),
    Text(String),
    Array(Vec<Value>),
    Object(BTreeMap<String, Value>),
}

fn a_text() -> impl Strategy<Value = String> {
    prop_oneof![".{0,6}", "[ab\"\\\\/\u{7f}\u{80}\u{e9}\u{ffff}\u{10000}\n\t\u{0}]{0,4}"]
}

fn a_value() -> impl Strategy<Value = Value> {
    let word = prop_oneof![
        Just("null".to_owned()),
        Just("true".to_owned()),
        "-?(0|[1-9][0-9]{0,25})",
        "-?(0|[1-9][0-9]{0,3})(\\.[0-9]{1,20})?([eE][+-]?[0-9]{1,2})?",
    ];
    let leaf = prop_oneof![word.prop_map(Value::Word), a_text().prop_map(Value::Text)];
    leaf.prop_recursive(5, 60, 6, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..5).prop_map(Value::Array),
            btree_map(a_text(), inner, 0..6).prop_map(Value::Object),
        ]
    })
}

fn an_object() -> impl Strategy<Value = Value> {
    btree_map(a_text(), a_value(), 0..6).prop_map(Value::Object)
}

/// Writes a value in one of its many spellings, as `choices` say.
fn spell(value: &Value, choices: &mut TestRng) -> String {
    let blank = |choices: &mut TestRng| [" ", "", "\n\t", "\r"][choices.random_range(0..4)];
    let (before, after) = (blank(choices), blank(choices));
    let spelt = match value {
        Value::Word(word) => word.clone(),
        Value::Text(text) => spell_text(text, choices),
        Value::Array(values) => {
            let values: Vec<_> = values.iter().map(|value| spell(value, choices)).collect();
            format!("[{}{}]", blank(choices), values.join(","))
        }
        Value::Object(members) => {
            let mut members: Vec<_> = members
                .iter()
                .map(|(name, value)| {
                    let (name, colon) = (spell_text(name, choices), blank(choices));
                    format!("{}{name}{colon}:{}", blank(choices), spell(value, choices))
                })
                .collect();
            for last in (1..members.len()).rev() {
                members.swap(last, choices.random_range(0..=last));
            }
            format!("{{{}{}}}", blank(choices), members.join(","))
        }
    };
    [before, &spelt, after].concat()
}

fn spell_text(text: &str, choices: &mut TestRng) -> String {
    let mut spelt = String::from("\"");
    for character in text.chars() {
        let must = character < ' ' || character == '"' || character == '\\';
        if !must && choices.random_bool(0.7) {
            spelt.push(character);
            continue;
        }
        for unit in character.encode_utf16(&mut [0; 2]) {
            let upper = choices.random_bool(0.5);
            spelt += &if upper { format!("\\u{unit:04X}") } else { format!("\\u{unit:04x}") };
        }
    }
    spelt + "\""
}

proptest! {
    #[test]
    fn a_canonical_form_is_its_own(value in an_object(), mut choices in rng()) {
        let form = canonical(&spell(&value, &mut choices)).unwrap();
        prop_assert_eq!(canonical(&form).unwrap(), form);
    }

    #[test]
    fn order_white_space_and_escapes_do_not_change_it(value in an_object(), mut choices in rng()) {
        let first = spell(&value, &mut choices);
        let second = spell(&value, &mut choices);
        prop_assert_eq!(canonical(&first).unwrap(), canonical(&second).unwrap());
        prop_assert_eq!(check(&first), Ok(()));
        prop_assert_eq!(members(&first).map(|all| all.len()), members(&second).map(|all| all.len()));
    }

    #[test]
    fn a_number_that_is_left_as_it_is_spelt_is_spelt_so(
        number in "-?(0|[1-9][0-9]{0,16})\\.(0{0,5}[0-9]{1,16})([eE]-?[0-9])?",
    ) {
        if double::is_repr(&number) {
            let mut written = String::new();
            double::write(&mut written, double::read(&number).unwrap());
            prop_assert_eq!(written, number);
        }
    }

    #[test]
    fn it_is_ascii_on_one_line(value in an_object(), mut choices in rng()) {
        let form = canonical(&spell(&value, &mut choices)).unwrap();
        prop_assert!(form.bytes().all(|byte| (b' '..=b'~').contains(&byte)));
    }

    #[test]
    fn no_text_makes_it_panic(text: String) {
        let refusal = canonical(&text).err();
        prop_assert!(refusal.is_some() || check(&text).is_ok());
    }

    #[test]
    fn all_three_readers_judge_alike(text in "[\\[\\]{}:,\"\\\\ua0e1.+ d8-]{0,24}") {
        for text in [text.clone(), format!("{{\"a\":{text}}}"), format!("{{\"{text}")] {
            let (form, checked) = (canonical(&text), check(&text));
            match form {
                Ok(_) => prop_assert!(checked.is_ok() && members(&text).is_ok()),
                Err(Refusal::NotAnObject { .. }) => prop_assert!(checked.is_ok()),
                Err(refusal) => {
                    prop_assert_eq!(checked, Err(refusal));
                    let syntax = members(&text).unwrap_err().is_syntax();
                    prop_assert_eq!(syntax, refusal.is_syntax());
                }
            }
        }
    }
}

/// A source of choices.
fn rng() -> impl Strategy<Value = TestRng> {
    Just(()).prop_perturb(|(), rng| rng)
}
