//! What one message costs the processor, step by step, without a broker or a database.
//!
//! Each line of the output is one step on a document of one size; `thrpt` counts the document's
//! bytes. The sizes are about 100 B, 1 KiB and 16 KiB.

use std::fmt::Write as _;
use std::fs;
use std::hint::black_box;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use callonce::call::canonical::canonical;
use callonce::call::job::{Job, Limits};
use callonce::call::key::{ConversationId, Digest, Ordinal, ToolName, TurnIndex};
use callonce::call::reply::{Reply, Status};
use callonce::tools::Tool;
use callonce::tools::registry::{Registry, Variables};
use criterion::measurement::WallTime;
use criterion::{
    BenchmarkGroup, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main,
};
use serde_json::value::RawValue;
use sse_core::{SseDecoder, SseEvent};

const SIZES: [(&str, usize); 3] = [("100B", 100), ("1KiB", 1024), ("16KiB", 16 * 1024)];

/// Arguments of about `bytes` bytes, as a model and a producer write them: members in no order,
/// text in any language, and `blank` after each comma and colon, as Python puts it.
fn arguments(bytes: usize, blank: &str) -> String {
    let mut args = String::from(
        r#"{"to":"acct-4711","amount":125.5,"currency":"EUR","memo":"Miete für März","dry":false}"#,
    );
    let mut n = 0_u32;
    // Another line while at least half of it is wanted.
    while args.len() + 135 < bytes {
        args.pop();
        write!(
            args,
            concat!(
                r#","line{n}":{{"sku":"A-{n}-9f","count":{n},"price":{n}.25,"title":"#,
                r#""A plain sentence, such as a model writes for a person to read.","#,
                r#""tags":["new","größer","東京"],"note":"he said \"no\"\n","#,
                r#""options":{{"gift":true,"wrap":null,"weight":1e-3}}}}}}"#
            ),
            n = n
        )
        .expect("writing to a String cannot fail");
        n += 7;
    }
    // No text above has a comma or a colon before a quote or a digit.
    args.replace(",\"", &format!(",{blank}\"")).replace("\":", &format!("\":{blank}"))
}

/// The body of a job with these arguments.
fn body(args: &str) -> Bytes {
    format!(
        concat!(
            r#"{{"conversation_id":"conv-7f3a2190b1","turn_index":12,"ordinal":0,"#,
            r#""call_id":"toolu_01A09q90qw90lq917835lq9","name":"send_payment","args":{args}}}"#
        ),
        args = args
    )
    .into()
}

/// A tool whose schema looks at the members of [`arguments`].
fn tool() -> Arc<Tool> {
    let folder = tempfile::tempdir().expect("a folder for the registry");
    let path = folder.path().join("tools.toml");
    let registry = r#"
        [tools.send_payment]
        effect = "unkeyed_write"
        http = { url = "http://127.0.0.1:9/" }
        [tools.send_payment.input_schema]
        type = "object"
        required = ["to", "amount", "currency"]
        [tools.send_payment.input_schema.properties]
        to = { type = "string", minLength = 1 }
        amount = { type = "number", exclusiveMinimum = 0 }
        currency = { enum = ["EUR", "USD"] }
        dry = { type = "boolean" }
        [tools.send_payment.input_schema.additionalProperties]
        type = ["object", "string"]
        required = []
    "#;
    fs::write(&path, registry).expect("the registry can be written");
    let registry =
        Registry::load(&path, Variables::required()).expect("the registry has no problem");
    registry.get("send_payment").expect("the tool is there").clone()
}

/// A group of one step, and its input of each size.
fn each(
    criterion: &mut Criterion,
    step: &str,
    bench: impl Fn(&mut BenchmarkGroup<'_, WallTime>, BenchmarkId, &str),
) {
    let mut group = criterion.benchmark_group(step);
    let compact = SIZES.map(|(name, bytes)| (name, arguments(bytes, "")));
    let spaced = ("1KiB-spaced", arguments(1024, " "));
    for (name, args) in compact.into_iter().chain([spaced]) {
        group.throughput(Throughput::Bytes(args.len() as u64));
        bench(&mut group, BenchmarkId::from_parameter(name), &args);
    }
    group.finish();
}

fn calls(criterion: &mut Criterion) {
    let conversation = ConversationId::parse("conv-7f3a2190b1", 64).expect("an id");
    let name = ToolName::parse("send_payment", 64).expect("a name");
    let turn = TurnIndex::new(12).expect("an index");
    let key = |canonical: &str| {
        Digest::of(&conversation, turn, &name, Ordinal::default(), canonical).key().to_string()
    };
    each(criterion, "canonical", |group, id, args| {
        group.bench_function(id, |bencher| bencher.iter(|| canonical(black_box(args))));
    });
    each(criterion, "key", |group, id, args| {
        let canonical = canonical(args).expect("arguments are an object");
        group.bench_function(id, |bencher| bencher.iter(|| key(black_box(&canonical))));
    });
    each(criterion, "canonical+key", |group, id, args| {
        group.bench_function(id, |bencher| {
            bencher.iter(|| canonical(black_box(args)).map(|canonical| key(&canonical)));
        });
    });
    each(criterion, "decode", |group, id, args| {
        let (body, limits) = (body(args), Limits::default());
        group.bench_function(id, |bencher| {
            bencher.iter(|| {
                Job::decode(black_box(&body), Some("application/json"), None, &limits)
                    .expect("the body is a job")
            });
        });
    });
    let tool = tool();
    each(criterion, "validate", |group, id, args| {
        tool.validate(args.as_bytes()).expect("arguments fit the schema");
        group.bench_function(id, |bencher| {
            bencher.iter(|| tool.validate(black_box(args.as_bytes())));
        });
    });
}

fn replies(criterion: &mut Criterion) {
    let job = Job::decode(&body("{}"), None, None, &Limits::default()).expect("the body is a job");
    each(criterion, "reply", |group, id, content| {
        let content: Box<RawValue> = serde_json::from_str(content).expect("the content is JSON");
        group.bench_function(id, |bencher| {
            bencher.iter(|| {
                serde_json::to_vec(&Reply {
                    key: Some(job.key()),
                    call_id: job.call_id.as_ref().map(|id| id.as_str()),
                    name: Some(job.name.as_str()),
                    status: Status::Completed,
                    is_error: false,
                    replayed: false,
                    attempt: 1,
                    content: Some(black_box(&content)),
                    warnings: &[],
                    error: None,
                })
            });
        });
    });
}

/// The decoder under the reader of event streams, with chunks as a socket gives them. The reader's
/// own part needs a response of a server.
fn streams(criterion: &mut Criterion) {
    const CHUNK_BYTES: usize = 8 * 1024;
    const EVENT_BYTES_MAX: NonZeroUsize = NonZeroUsize::new(1024 * 1024).expect("it is not zero");
    let mut group = criterion.benchmark_group("stream");
    for (name, args) in SIZES.map(|(name, bytes)| (name, arguments(bytes, ""))) {
        let event = format!("id: 1\nevent: progress\ndata: {args}\n\n");
        let stream = event.repeat((256 * 1024_usize).div_ceil(event.len()));
        group.throughput(Throughput::Bytes(stream.len() as u64));
        group.bench_function(BenchmarkId::from_parameter(name), |bencher| {
            bencher.iter(|| {
                let mut decoder = SseDecoder::with_limit(EVENT_BYTES_MAX);
                let mut messages = 0;
                for mut chunk in black_box(stream.as_bytes()).chunks(CHUNK_BYTES) {
                    while let Some(next) = decoder.next(&mut chunk) {
                        messages += usize::from(matches!(next, Ok(SseEvent::Message(_))));
                    }
                }
                messages
            });
        });
    }
    group.finish();
}

criterion_group! {
    name = micro;
    // Half a minute in all, and within a few per cent.
    config = Criterion::default()
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1))
        .sample_size(50)
        .without_plots();
    targets = calls, replies, streams
}
criterion_main!(micro);
