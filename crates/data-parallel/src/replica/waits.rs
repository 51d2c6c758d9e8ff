//! Which networks wait for which: a replica that asks its own network, or one that waits for it, would wait for ever.

use std::cell::Cell;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use candle_core::Result;
use devices::{bail, lock};

/// A network, among all of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NetworkId(u64);

impl NetworkId {
    pub fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// Says that this thread is one of its replicas.
    pub fn is_served_here(self) {
        SERVES.set(Some(self));
    }

    /// True on a thread of its replicas.
    pub fn is_here(self) -> bool {
        SERVES.get() == Some(self)
    }
}

thread_local! {
    /// The network of which this thread is a replica.
    static SERVES: Cell<Option<NetworkId>> = const { Cell::new(None) };
}

/// A replica of the first network waits for the second one.
type Wait = (NetworkId, NetworkId);

static WAITS: Mutex<Vec<Wait>> = Mutex::new(Vec::new());

/// A wait of this thread for a network, if it is a replica of another one.
pub(crate) struct Waits(Option<Wait>);

impl Waits {
    /// Begins to wait.
    ///
    /// # Errors
    /// If the network waits for the one of this thread, or is that one.
    pub fn for_network(network: NetworkId) -> Result<Self> {
        let Some(own) = SERVES.get() else {
            return Ok(Self(None));
        };
        let mut waits = lock(&WAITS);
        let mut waiting = vec![network];
        let mut next = 0;
        while let Some(of) = waiting.get(next).copied() {
            let others = waits.iter().filter(|(from, _)| *from == of);
            for (_, other) in others {
                if !waiting.contains(other) {
                    waiting.push(*other);
                }
            }
            next += 1;
        }
        if waiting.contains(&own) {
            bail!(
                "a loss, a metric or a layer asks the network that it is computed for, which answers when it is computed. \
                 Value::detach gives an output as a target; a second DataParallel can be asked, unless it asks this one"
            )
        }
        waits.push((own, network));
        Ok(Self(Some((own, network))))
    }
}

impl Drop for Waits {
    fn drop(&mut self) {
        let mut waits = lock(&WAITS);
        let of_this = |wait: &Wait| Some(*wait) == self.0;
        if let Some(i) = waits.iter().position(of_this) {
            waits.swap_remove(i);
        }
    }
}
