//! Which call a line of the log is about.
//!
//! A delivery's task carries the names, and they are written with a line, never before: a call that
//! logs nothing pays nothing for them.

use std::cell::{Cell, OnceCell};
use std::fmt;
use std::sync::Arc;

use serde::Serialize;
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::{Format, Full, Json, Writer};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;
use uuid::Uuid;

use crate::call::job::Job;

tokio::task_local! {
    static NAMES: Names;
}

/// What is known of the call that a task carries out.
#[derive(Debug, Default)]
pub struct Names {
    redelivered: bool,
    job: OnceCell<Arc<Job>>,
    attempt: Cell<Option<(i32, Uuid)>>,
}

/// How the names stand in a line.
#[derive(Serialize)]
struct Shown<'a> {
    #[serde(flatten)]
    call: Option<Call<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    attempt: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    claim: Option<Uuid>,
    redelivered: bool,
}

#[derive(Serialize)]
struct Call<'a> {
    key: crate::call::key::IdempotencyKey,
    conversation: &'a str,
    turn: i64,
    tool: &'a str,
    ordinal: i64,
}

impl Names {
    /// Of a delivery that is not looked at yet.
    pub fn new(redelivered: bool) -> Self {
        Self { redelivered, ..Self::default() }
    }

    /// Runs a task whose lines are about these.
    pub fn scope<F: Future>(self, task: F) -> impl Future<Output = F::Output> {
        NAMES.scope(self, task)
    }

    /// The call of this task is known now.
    pub fn call(job: &Arc<Job>) {
        // Outside of a delivery's task there is nobody to tell, and a second call there is not.
        NAMES.try_with(|names| names.job.set(job.clone()).ok()).ok();
    }

    /// This task acts under a claim.
    pub fn attempt(attempt: i32, claim: Uuid) {
        NAMES.try_with(|names| names.attempt.set(Some((attempt, claim)))).ok();
    }

    fn shown(&self) -> Shown<'_> {
        let call = self.job.get().map(|job| Call {
            key: job.key(),
            conversation: job.conversation_id.as_str(),
            turn: job.turn_index.as_i64(),
            tool: job.name.as_str(),
            ordinal: job.ordinal.as_i64(),
        });
        let (attempt, claim) = self.attempt.get().unzip();
        Shown { call, attempt, claim, redelivered: self.redelivered }
    }
}

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(Call { key, conversation, turn, tool, ordinal }) = &self.call {
            write!(
                f,
                " key={key} conversation={conversation:?} turn={turn} tool={tool:?} ordinal={ordinal}"
            )?;
        }
        if let (Some(attempt), Some(claim)) = (self.attempt, self.claim) {
            write!(f, " attempt={attempt} claim={claim}")?;
        }
        write!(f, " redelivered={}", self.redelivered)
    }
}

/// A line with the names of its task at the end.
pub(super) enum WithNames {
    /// For people.
    Pretty(Format<Full>),
    /// One JSON object a line.
    Json(Format<Json>),
}

impl<S, N> FormatEvent<S, N> for WithNames
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut line = String::new();
        match self {
            Self::Pretty(format) => format.format_event(context, Writer::new(&mut line), event)?,
            Self::Json(format) => format.format_event(context, Writer::new(&mut line), event)?,
        }
        let named = NAMES.try_with(|names| match self {
            Self::Pretty(_) => Ok(format!("{}{}\n", line.trim_end_matches('\n'), names.shown())),
            Self::Json(_) => {
                let shown = serde_json::to_string(&names.shown()).map_err(|_| fmt::Error)?;
                let object = line.trim_end();
                let object = object.strip_suffix('}').ok_or(fmt::Error)?;
                Ok(format!("{object},\"call\":{shown}}}\n"))
            }
        });
        match named {
            Ok(named) => writer.write_str(&named?),
            Err(_) => writer.write_str(&line),
        }
    }
}
