//! The limits on running tools: one for all, one for each tool; and on what waits for its turn.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore, SemaphorePermit};
use tokio::time::Instant;

use crate::tools::Tool;
use crate::tools::registry::Registry;

/// How long a delivery waits in a crowd until it gives way: a quick tool gets to it long before.
const PATIENCE: Duration = Duration::from_secs(1);

/// Between two deliveries that give way: enough for what is behind them to get through, and no more
/// than a few hundredths of a core for a backlog that goes round.
const GIVES_WAY_EVERY: Duration = Duration::from_millis(4);

/// The right to run a tool; given back on drop.
#[derive(Debug)]
pub(super) struct Permit {
    _tool: OwnedSemaphorePermit,
    _overall: OwnedSemaphorePermit,
}

/// How many tools run at a time, and how many calls wait for that.
pub struct Permits {
    overall: Arc<Semaphore>,
    tools: HashMap<String, Arc<Semaphore>>,
    /// Places to wait for a permit; who has none gives way in time.
    places: Semaphore,
    gave_way: Mutex<Instant>,
}

impl Permits {
    /// At most `overall` tools at a time, and of each what the registry says; of all that the broker
    /// hands over, half of `prefetch` may wait for that.
    pub fn new(overall: usize, prefetch: u16, registry: &Registry) -> Self {
        let of = |tool: &Arc<Tool>| {
            let running = tool.max_concurrency().min(Semaphore::MAX_PERMITS);
            (tool.name().as_str().to_owned(), Arc::new(Semaphore::new(running)))
        };
        Self {
            overall: Arc::new(Semaphore::new(overall)),
            tools: registry.iter().map(of).collect(),
            places: Semaphore::new(usize::from(prefetch / 2).max(1)),
            gave_way: Mutex::new(Instant::now()),
        }
    }

    /// A permit, if one is free now.
    pub(super) fn try_take(&self, tool: &Tool) -> Option<Permit> {
        let of_tool = self.of(tool)?.clone().try_acquire_owned().ok()?;
        let overall = self.overall.clone().try_acquire_owned().ok()?;
        Some(Permit { _tool: of_tool, _overall: overall })
    }

    /// A permit, in turn. The tool's own comes first, so that a slow tool's calls wait for each
    /// other and hold nothing that another tool needs. `None` never comes: each tool of the registry
    /// has its limits, and no semaphore is closed.
    ///
    /// # Cancel safety
    ///
    /// Safe: the place in the queue is lost.
    pub(super) async fn take(&self, tool: &Tool) -> Option<Permit> {
        let of_tool = self.of(tool)?.clone().acquire_owned().await.ok()?;
        let overall = self.overall.clone().acquire_owned().await.ok()?;
        Some(Permit { _tool: of_tool, _overall: overall })
    }

    /// A place to wait for a permit, if one is free. All tools share them: however many are slow, they
    /// never hold all that the broker hands over.
    pub(super) fn place(&self) -> Option<SemaphorePermit<'_>> {
        self.places.try_acquire().ok()
    }

    /// Comes back when a delivery that waits without a place is to give way: not at once, and one
    /// after another.
    ///
    /// # Cancel safety
    ///
    /// Safe: the next one gives way instead.
    pub(super) async fn give_way(&self) {
        tokio::time::sleep(PATIENCE).await;
        let mut gave_way = self.gave_way.lock().await;
        tokio::time::sleep_until(*gave_way + GIVES_WAY_EVERY).await;
        *gave_way = Instant::now();
    }

    fn of(&self, tool: &Tool) -> Option<&Arc<Semaphore>> {
        self.tools.get(tool.name().as_str())
    }
}
