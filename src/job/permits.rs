//! The limits on running tools: one for all, one for each tool.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::tools::Tool;
use crate::tools::registry::Registry;

/// The right to run a tool; given back on drop.
#[derive(Debug)]
pub(super) struct Permit {
    _tool: OwnedSemaphorePermit,
    _overall: OwnedSemaphorePermit,
}

/// How many tools run at a time.
pub struct Permits {
    overall: Arc<Semaphore>,
    tools: HashMap<String, Arc<Semaphore>>,
}

impl Permits {
    /// At most `overall` tools at a time, and of each what the registry says.
    pub fn new(overall: usize, registry: &Registry) -> Self {
        let of = |tool: &Arc<Tool>| {
            let permits = tool.max_concurrency().min(Semaphore::MAX_PERMITS);
            (tool.name().as_str().to_owned(), Arc::new(Semaphore::new(permits)))
        };
        Self {
            overall: Arc::new(Semaphore::new(overall)),
            tools: registry.iter().map(of).collect(),
        }
    }

    /// A permit, if one is free now.
    pub(super) fn try_take(&self, tool: &Tool) -> Option<Permit> {
        let of_tool = self.of(tool).try_acquire_owned().ok()?;
        let overall = self.overall.clone().try_acquire_owned().ok()?;
        Some(Permit { _tool: of_tool, _overall: overall })
    }

    /// A permit, in turn. The tool's own comes first, so that a slow tool's calls wait for each
    /// other and hold nothing that another tool needs. `None` never comes: no semaphore is closed.
    ///
    /// # Cancel safety
    ///
    /// Safe: the place in the queue is lost.
    pub(super) async fn take(&self, tool: &Tool) -> Option<Permit> {
        let of_tool = self.of(tool).acquire_owned().await.ok()?;
        let overall = self.overall.clone().acquire_owned().await.ok()?;
        Some(Permit { _tool: of_tool, _overall: overall })
    }

    /// A tool that is not of the registry, which no delivery brings, may run one call at a time.
    fn of(&self, tool: &Tool) -> Arc<Semaphore> {
        self.tools.get(tool.name().as_str()).cloned().unwrap_or_else(|| Arc::new(Semaphore::new(1)))
    }
}
