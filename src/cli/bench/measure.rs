//! What can be measured, in the order in which it is.

use clap::ValueEnum;

/// One figure of the benchmark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(super) enum Measure {
    /// Claiming and settling alone, from this process
    #[value(name = "bound.ledger")]
    BoundLedger,
    /// Publishing with confirms alone
    #[value(name = "bound.publish")]
    BoundPublish,
    /// Consuming with acks alone
    #[value(name = "bound.consume")]
    BoundConsume,
    /// `unique` with one statement a call
    #[value(name = "unique.per_call")]
    UniquePerCall,
    /// Calls that nobody made before, waiting in the queue; a tool that does nothing
    #[value(name = "unique")]
    Unique,
    /// The same calls again, all of them in the ledger
    #[value(name = "replayed")]
    Replayed,
    /// Calls of which each fifth repeats one just made
    #[value(name = "repeated")]
    Repeated,
    /// Calls that are published while the worker runs, from this machine
    #[value(name = "live")]
    Live,
    /// A tool over HTTP, on loopback
    #[value(name = "http")]
    Http,
    /// A tool that takes 20 ms, 250 at a time, one worker
    #[value(name = "wait_1")]
    Wait1,
    /// The same with two workers
    #[value(name = "wait_2")]
    Wait2,
    /// `latency` with one statement a call
    #[value(name = "latency.per_call")]
    LatencyPerCall,
    /// One call at a time, from publishing to its reply
    #[value(name = "latency")]
    Latency,
    /// From a worker's start to the reply to a call that waited for it
    #[value(name = "start")]
    Start,
}

impl Measure {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::BoundLedger => "bound.ledger",
            Self::BoundPublish => "bound.publish",
            Self::BoundConsume => "bound.consume",
            Self::UniquePerCall => "unique.per_call",
            Self::Unique => "unique",
            Self::Replayed => "replayed",
            Self::Repeated => "repeated",
            Self::Live => "live",
            Self::Http => "http",
            Self::Wait1 => "wait_1",
            Self::Wait2 => "wait_2",
            Self::LatencyPerCall => "latency.per_call",
            Self::Latency => "latency",
            Self::Start => "start",
        }
    }

    /// What it is compared with; none for what others are compared with.
    pub(super) fn per_call(self) -> Option<Self> {
        match self {
            Self::Unique | Self::Replayed | Self::Repeated | Self::Live => {
                Some(Self::UniquePerCall)
            }
            Self::Latency => Some(Self::LatencyPerCall),
            Self::BoundLedger
            | Self::BoundPublish
            | Self::BoundConsume
            | Self::UniquePerCall
            | Self::Http
            | Self::Wait1
            | Self::Wait2
            | Self::LatencyPerCall
            | Self::Start => None,
        }
    }

    /// Whether it is a number of calls a second that the servers alone bound.
    pub(super) fn has_bounds(self) -> bool {
        match self {
            Self::UniquePerCall | Self::Unique | Self::Replayed | Self::Repeated | Self::Live => {
                true
            }
            Self::BoundLedger
            | Self::BoundPublish
            | Self::BoundConsume
            | Self::Http
            | Self::Wait1
            | Self::Wait2
            | Self::LatencyPerCall
            | Self::Latency
            | Self::Start => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_measure_is_printed_by_the_name_that_selects_it() {
        for measure in Measure::value_variants() {
            assert_eq!(Measure::from_str(measure.name(), false), Ok(*measure));
        }
    }
}
