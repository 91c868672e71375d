//! How an attempt's requests ended that did not end the ordinary way: kept with the attempt, so that
//! whoever looks the call up sees on what its outcome rests.

use serde::{Deserialize, Serialize};

use crate::call::reply::Phase;
use crate::outcome::{Branch, Failure};

/// Steps that are kept of one attempt; more of them would say nothing new.
const STEPS_MAX: usize = 32;

/// What an attempt went through, in order, like steps that follow each other as one.
#[derive(Debug, Default)]
pub(super) struct Trail(Vec<Counted>);

#[derive(Debug, Serialize)]
struct Counted {
    #[serde(flatten)]
    step: Step,
    times: u32,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
enum Step {
    Request { branch: Branch, phase: Phase, message: String },
    Probe { probe: &'static str, message: Option<String> },
}

impl Trail {
    /// A request that was not answered the ordinary way.
    pub(super) fn request(&mut self, failure: &Failure) {
        let Failure { branch, phase, message, .. } = failure;
        self.push(Step::Request { branch: *branch, phase: *phase, message: message.clone() });
    }

    /// A probe's answer.
    pub(super) fn probe(&mut self, answer: &'static str, message: Option<String>) {
        self.push(Step::Probe { probe: answer, message });
    }

    fn push(&mut self, step: Step) {
        if let Some(last) = self.0.last_mut().filter(|last| last.step == step) {
            last.times = last.times.saturating_add(1);
        } else if self.0.len() < STEPS_MAX {
            self.0.push(Counted { step, times: 1 });
        }
    }

    /// Whether the downstream has said in a trail that was kept that it has the key. One that cannot be
    /// read could say so.
    pub(super) fn shows_the_key_is_known(kept: &[u8]) -> bool {
        #[derive(Deserialize)]
        struct Step {
            branch: Option<Branch>,
        }
        serde_json::from_slice::<Vec<Step>>(kept).map_or(true, |steps| {
            steps.iter().filter_map(|step| step.branch).any(Branch::shows_the_key_is_known)
        })
    }

    /// As it is kept; none for an attempt that went the ordinary way.
    pub(super) fn into_json(self) -> Option<Vec<u8>> {
        if self.0.is_empty() {
            return None;
        }
        serde_json::to_vec(&self.0)
            .inspect_err(|error| tracing::error!(%error, "an attempt's trail cannot be written"))
            .ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lost(message: &str) -> Failure {
        Failure {
            branch: Branch::Lost,
            phase: Phase::AwaitResponse,
            message: message.to_owned(),
            retry_after: None,
        }
    }

    #[test]
    fn like_steps_are_counted_and_the_rest_is_bounded() {
        let mut trail = Trail::default();
        trail.request(&lost("a"));
        trail.request(&lost("a"));
        trail.probe("running", None);
        let json = trail.into_json().unwrap();
        assert_eq!(
            String::from_utf8(json).unwrap(),
            r#"[{"branch":"lost","phase":"await_response","message":"a","times":2},{"probe":"running","message":null,"times":1}]"#
        );

        let mut trail = Trail::default();
        trail.probe("not_found", None);
        trail.request(&lost("a"));
        assert!(!Trail::shows_the_key_is_known(&trail.into_json().unwrap()));
        let busy = Failure { branch: Branch::InProgress, ..lost("a") };
        let mut trail = Trail::default();
        trail.request(&lost("a"));
        trail.request(&busy);
        assert!(Trail::shows_the_key_is_known(&trail.into_json().unwrap()));
        assert!(Trail::shows_the_key_is_known(br#"[{"branch":"of a later version"}]"#));

        let mut trail = Trail::default();
        (0..100).for_each(|n| trail.request(&lost(&n.to_string())));
        assert_eq!(trail.0.len(), STEPS_MAX);
        assert_eq!(Trail::default().into_json(), None);
    }
}
