//! Where figures were measured: without it they say nothing.

use std::fs;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::process::kibibytes;

/// A machine, its servers, and when.
#[derive(Debug, Clone)]
pub(super) struct Machine {
    pub(super) date: Timestamp,
    pub(super) cpu: Option<String>,
    pub(super) cores: usize,
    pub(super) memory_bytes: Option<u64>,
    pub(super) postgres: String,
    pub(super) rabbitmq: Option<String>,
}

impl Machine {
    /// This one, with what its servers say of themselves.
    pub(super) fn here(postgres: String, rabbitmq: Option<String>) -> Self {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        Self {
            date: Timestamp::now(),
            cpu: cpu_model(&read("/proc/cpuinfo")),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: kibibytes(&read("/proc/meminfo"), "MemTotal"),
            postgres,
            rabbitmq,
        }
    }

    pub(super) fn text(&self) -> String {
        let cores = if self.cores == 1 { "core" } else { "cores" };
        let memory = self.memory_bytes.map(|bytes| format!("{} GiB", (bytes + (1 << 29)) >> 30));
        let or_dash = |text: Option<&str>| text.unwrap_or("-").to_owned();
        format!(
            "{}: callonce {}, {} {cores} ({}), {} of memory, PostgreSQL {}, RabbitMQ {}",
            self.date.strftime("%Y-%m-%d"),
            env!("CARGO_PKG_VERSION"),
            self.cores,
            or_dash(self.cpu.as_deref()),
            or_dash(memory.as_deref()),
            self.postgres,
            or_dash(self.rabbitmq.as_deref()),
        )
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "date": self.date.to_string(),
            "callonce": env!("CARGO_PKG_VERSION"),
            "cpu": self.cpu,
            "cores": self.cores,
            "memory_bytes": self.memory_bytes,
            "postgres": self.postgres,
            "rabbitmq": self.rabbitmq,
        })
    }
}

fn cpu_model(cpuinfo: &str) -> Option<String> {
    let line = cpuinfo.lines().find_map(|line| line.strip_prefix("model name"))?;
    let model = line.trim_start().strip_prefix(':')?.trim();
    (!model.is_empty()).then(|| model.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_processors_model_is_its_first_ones() {
        let text = "processor\t: 0\nmodel name\t: A CPU @ 2 GHz\n\nmodel name\t: B\n";
        assert_eq!(cpu_model(text).as_deref(), Some("A CPU @ 2 GHz"));
        assert_eq!(cpu_model("model name\t:\n"), None);
        assert_eq!(cpu_model(""), None);
    }

    #[test]
    fn what_is_not_known_is_a_dash() {
        let machine = Machine {
            date: Timestamp::UNIX_EPOCH,
            cpu: None,
            cores: 2,
            memory_bytes: None,
            postgres: "15.1".to_owned(),
            rabbitmq: None,
        };
        let text = machine.text();
        assert!(text.starts_with("1970-01-01: callonce "), "{text}");
        assert!(text.ends_with("2 cores (-), - of memory, PostgreSQL 15.1, RabbitMQ -"), "{text}");
        assert_eq!(machine.json()["rabbitmq"], Value::Null);
    }
}
