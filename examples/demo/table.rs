//! The table at the end, and the judgement.

use std::collections::BTreeMap;
use std::fmt;

use crate::place::Row;
use crate::scenarios::{Act, Seen};
use crate::watch::{Books, Logs};

/// A row for each scenario, and the totals.
pub(crate) struct Table(Vec<(&'static str, usize, Seen)>);

impl Table {
    pub(crate) fn new(acts: &[Act], books: &Books, logs: &Logs) -> Self {
        let mut rows: Vec<_> = acts
            .iter()
            .map(|act| (act.row, act.calls.len(), Seen::of(&act.calls, books, logs)))
            .collect();
        let calls = rows.iter().map(|(_, calls, _)| calls).sum();
        let sum = |of: fn(&Seen) -> usize| rows.iter().map(|(_, _, seen)| of(seen)).sum();
        let total = Seen {
            deliveries: sum(|seen| seen.deliveries),
            posts: sum(|seen| seen.posts),
            effects: sum(|seen| seen.effects),
            replays: sum(|seen| seen.replays),
        };
        rows.push(("total", calls, total));
        Self(rows)
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.0.iter().map(|(title, ..)| title.len()).max().unwrap_or_default();
        writeln!(
            f,
            "{:width$}  {:>5}  {:>10}  {:>5}  {:>7}  {:>7}",
            "scenario", "calls", "deliveries", "POSTs", "effects", "replays"
        )?;
        for (title, calls, seen) in &self.0 {
            let Seen { deliveries, posts, effects, replays } = seen;
            writeln!(
                f,
                "{title:width$}  {calls:>5}  {deliveries:>10}  {posts:>5}  {effects:>7}  {replays:>7}"
            )?;
        }
        writeln!(f)?;
        writeln!(
            f,
            "A call is what shares one key. Deliveries and replays (answers from the ledger)"
        )?;
        writeln!(
            f,
            "are from the workers' logs, POSTs and effects (payments made, tickets opened)"
        )?;
        writeln!(f, "from the API's own counts.")
    }
}

/// What is not as it should be: nothing, if every call took effect exactly once.
pub(crate) fn wrong(acts: &[Act], books: &Books, rows: &[Row]) -> Vec<String> {
    let mut wrong = Vec::new();
    let states: BTreeMap<_, _> = rows.iter().map(|row| (&row.key, row.state.as_str())).collect();
    let calls: Vec<_> = acts.iter().flat_map(|act| &act.calls).collect();
    for call in &calls {
        let acted = books.of(&call.key).effects;
        if acted != 1 {
            wrong.push(format!("acted {acted} times: {}", call.name));
        }
        let state = states.get(&call.key).copied().unwrap_or("not there");
        if state != "completed" {
            wrong.push(format!("{state} in the ledger: {}", call.name));
        }
    }
    let effects = books.payments + books.tickets;
    if effects != calls.len() {
        wrong.push(format!("{effects} effects for {} calls", calls.len()));
    }
    if rows.len() != calls.len() {
        wrong.push(format!("{} calls in the ledger for {} calls", rows.len(), calls.len()));
    }
    let mut answers = BTreeMap::new();
    for reply in acts.iter().flat_map(|act| &act.replies) {
        if reply.status != "completed" || reply.is_error {
            wrong.push(format!("the reply to {} says {}", reply.key, reply.status));
        }
        if answers.entry(&reply.key).or_insert(&reply.content) != &&reply.content {
            wrong.push(format!("two replies to {} have different answers", reply.key));
        }
    }
    wrong
}
