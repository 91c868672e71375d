//! What goes into a key, what each part of it is for, and the forms that it takes.

use super::*;

/// The parts of one call.
#[derive(Clone, Copy)]
struct Parts<'a> {
    conversation: &'a str,
    turn: u64,
    name: &'a str,
    ordinal: u64,
    canonical: &'a str,
}

const PAYMENT: Parts<'static> = Parts {
    conversation: "conv_42",
    turn: 7,
    name: "send_payment",
    ordinal: 0,
    canonical: r#"{"amount":1,"invoice":"INV-1","note":"\u00e9"}"#,
};

impl Parts<'_> {
    fn digest(&self) -> Digest {
        Digest::of(
            &ConversationId::parse(self.conversation, 1024).unwrap(),
            TurnIndex::new(self.turn).unwrap(),
            &ToolName::parse(self.name, 256).unwrap(),
            Ordinal::new(self.ordinal).unwrap(),
            self.canonical,
        )
    }

    fn key(&self) -> String {
        self.digest().key().to_string()
    }

    /// A key by the same recipe with one part left out: what each part is there against.
    fn key_without(&self, part: &str) -> String {
        let (turn, ordinal) = (self.turn.to_string(), self.ordinal.to_string());
        let parts = [
            ("conversation", self.conversation),
            ("turn", &turn),
            ("name", self.name),
            ("ordinal", &ordinal),
            ("arguments", self.canonical),
        ];
        let kept: Vec<_> = parts.iter().filter(|(name, _)| *name != part).map(|p| p.1).collect();
        let digest = Sha256::digest(kept.join("|"));
        digest[..16].iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

#[test]
fn a_known_call_has_its_known_key() {
    assert_eq!(PAYMENT.key(), "0eb243dbd96aaf3995360445bec52dff");
    let canonical = r#"{"amount":1.0,"invoice":"INV-1","note":"\u00e9"}"#;
    assert_eq!(Parts { canonical, ..PAYMENT }.key(), "272f4286af598a7a1acb6f644b8be822");
}

#[test]
fn the_streamed_material_is_the_joined_one() {
    let calls = [
        PAYMENT,
        Parts { conversation: "会话-12", turn: 0, ordinal: 10, ..PAYMENT },
        Parts { turn: i64::MAX as u64, ordinal: i64::MAX as u64, ..PAYMENT },
        Parts { canonical: r#"{"a":"|"}"#, turn: 1_234_567_890, ordinal: 9, ..PAYMENT },
    ];
    for call in calls {
        assert_eq!(call.key(), call.key_without("nothing"));
    }
}

#[test]
fn without_the_conversation_two_users_equal_calls_collide() {
    let other = Parts { conversation: "conv_43", ..PAYMENT };
    assert_eq!(PAYMENT.key_without("conversation"), other.key_without("conversation"));
    assert_ne!(PAYMENT.key(), other.key());
}

#[test]
fn without_the_name_a_payment_and_its_voiding_collide() {
    let other = Parts { name: "void_payment", ..PAYMENT };
    assert_eq!(PAYMENT.key_without("name"), other.key_without("name"));
    assert_ne!(PAYMENT.key(), other.key());
}

#[test]
fn without_the_turn_a_wanted_second_payment_is_swallowed() {
    let later = Parts { turn: 8, ..PAYMENT };
    assert_eq!(PAYMENT.key_without("turn"), later.key_without("turn"));
    assert_ne!(PAYMENT.key(), later.key());
}

#[test]
fn without_the_ordinal_two_identical_calls_of_one_turn_become_one() {
    let second = Parts { ordinal: 1, ..PAYMENT };
    assert_eq!(PAYMENT.key_without("ordinal"), second.key_without("ordinal"));
    assert_ne!(PAYMENT.key(), second.key());
}

#[test]
fn without_the_canonical_form_a_repeat_has_another_key() {
    let (first, again) = (r#"{"a":1,"b":"é"}"#, r#"{ "b": "\u00e9", "a": 1 }"#);
    let as_it_came = |canonical| Parts { canonical, ..PAYMENT }.key_without("nothing");
    assert_ne!(as_it_came(first), as_it_came(again));
    let [first, again] =
        [first, again].map(|text| crate::call::canonical::canonical(text).unwrap());
    let ours = |canonical| Parts { canonical, ..PAYMENT }.key();
    assert_eq!(ours(&first), ours(&again));
}

#[test]
fn no_part_can_be_moved_across_a_separator() {
    assert_eq!(ConversationId::parse("acct|1", 1024), Err(IdError::Separator));
    assert_eq!(ToolName::parse("2|pay", 256), Err(IdError::Separator));
}

#[test]
fn identifiers_are_taken_as_they_are_or_refused() {
    for id in ["a", " a ", "会话-12", "e\u{301}", "a\u{ad}b", "\u{2028}", "a.b:c/d"] {
        assert_eq!(ConversationId::parse(id, 1024).unwrap().as_str(), id);
        assert_eq!(ToolName::parse(id, 256).unwrap().to_string(), id);
        assert_eq!(CallId::parse(id, 256).unwrap().as_str(), id);
    }
    for id in ["a\n", "\0", "a\tb", "\u{7f}", "a\u{85}", "\u{9f}"] {
        assert_eq!(ConversationId::parse(id, 1024), Err(IdError::ControlCharacter), "{id:?}");
        assert_eq!(ToolName::parse(id, 256), Err(IdError::ControlCharacter), "{id:?}");
        assert_eq!(CallId::parse(id, 256), Err(IdError::ControlCharacter), "{id:?}");
        assert_eq!(ResponseId::parse(id, 256), Err(IdError::ControlCharacter), "{id:?}");
    }
    assert_eq!(ConversationId::parse("", 1024), Err(IdError::Empty));
    assert_eq!(ToolName::parse("", 256), Err(IdError::Empty));
    assert_eq!(CallId::parse("", 256), Err(IdError::Empty));
    // Ids that are no part of the key may hold what separates its parts.
    assert_eq!(CallId::parse("a|b", 256).unwrap().as_str(), "a|b");
    assert_eq!(ResponseId::parse("a|b", 256).unwrap().as_str(), "a|b");
}

#[test]
fn the_length_of_an_identifier_is_counted_in_bytes() {
    let most = "é".repeat(128);
    assert_eq!(ToolName::parse(&most, 256).unwrap().as_str(), most);
    let over = IdError::TooLong { bytes: 257, bytes_max: 256 };
    assert_eq!(ToolName::parse(&format!("{most}a"), 256), Err(over));
}

#[test]
fn an_index_is_plain_digits_up_to_what_postgres_holds() {
    assert_eq!(TurnIndex::parse("0").unwrap().get(), 0);
    assert_eq!(TurnIndex::parse("9223372036854775807").unwrap().as_i64(), i64::MAX);
    assert_eq!(Ordinal::new(3).unwrap().to_string(), "3");
    assert_eq!(Ordinal::default().as_i64(), 0);
    let refused =
        ["", "-0", "-1", "+1", "1.0", "1e3", " 1", "1_000", "٣", "9223372036854775808", "1e", "x"];
    for text in refused {
        assert_eq!(TurnIndex::parse(text), Err(IndexError), "{text}");
        assert_eq!(Ordinal::parse(text), Err(IndexError), "{text}");
    }
    assert_eq!(TurnIndex::parse(&"9".repeat(400)), Err(IndexError));
    assert_eq!(Ordinal::new(1 << 63), Err(IndexError));
}

#[test]
fn a_key_is_read_as_it_is_written_and_not_otherwise() {
    let text = "0eb243dbd96aaf3995360445bec52dff";
    let key: IdempotencyKey = text.parse().unwrap();
    assert_eq!(key, PAYMENT.digest().key());
    assert_eq!(key.to_string(), text);
    assert_eq!(format!("{key:?}"), text);
    assert_eq!(serde_json::to_string(&key).unwrap(), format!("\"{text}\""));
    assert_eq!(IdempotencyKey::from_bytes(*key.as_bytes()), key);
    let refused = [
        "",
        "0eb243dbd96aaf3995360445bec52df",
        "0eb243dbd96aaf3995360445bec52dff0",
        "0EB243DBD96AAF3995360445BEC52DFF",
        "0eb243dbd96aaf3995360445bec52dfg",
        "0eb243db-d96a-af39-9536-0445bec52dff",
        "+eb243dbd96aaf3995360445bec52dff",
        "éb243dbd96aaf3995360445bec52dff",
    ];
    for text in refused {
        assert_eq!(text.parse::<IdempotencyKey>(), Err(KeyError), "{text}");
    }
}

#[test]
fn a_digest_is_rendered_as_a_downstream_takes_it() {
    let digest = PAYMENT.digest();
    let whole = digest.to_string();
    assert_eq!(digest.render(KeyFormat::Hex32), whole[..32]);
    assert_eq!(digest.render(KeyFormat::Hex64), whole);
    assert_eq!(whole.len(), 64);
    // The digits of the key, but for the version (8) and the variant (binary 10) of a UUID.
    assert_eq!(digest.render(KeyFormat::Uuid), "0eb243db-d96a-8f39-9536-0445bec52dff");
    let ones = Digest::from_bytes([0xff; 32]);
    assert_eq!(ones.render(KeyFormat::Uuid), "ffffffff-ffff-8fff-bfff-ffffffffffff");
    assert_eq!(ones.as_bytes(), &[0xff; 32]);
}

#[test]
fn a_key_format_is_named_in_lower_case() {
    let named = |name: &str| serde_json::from_str::<KeyFormat>(name).unwrap();
    assert_eq!(named("\"hex32\""), KeyFormat::Hex32);
    assert_eq!(named("\"hex64\""), KeyFormat::Hex64);
    assert_eq!(named("\"uuid\""), KeyFormat::Uuid);
    assert_eq!(KeyFormat::default(), KeyFormat::Hex32);
    assert!(serde_json::from_str::<KeyFormat>("\"Hex32\"").is_err());
}
