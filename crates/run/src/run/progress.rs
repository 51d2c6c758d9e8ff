//! Where a run stands: its steps so far, the losses that are still on the devices, and what shows them.

use crate::bar::Bar;
use crate::lines::Sizes;
use crate::trace::Trace;
use crate::unread::Unread;

#[derive(Debug)]
pub(super) struct Progress {
    /// Steps that were taken; the losses of the last ones may be unread.
    pub taken: usize,
    /// The step of the last checkpoint, whether or not it could be written.
    pub checkpointed: usize,
    pub unread: Unread,
    pub bar: Bar,
    pub trace: Option<Trace>,
}

impl Progress {
    /// No step was taken, and nothing is shown.
    pub fn new(sizes: Sizes) -> Self {
        Self {
            taken: 0,
            checkpointed: 0,
            unread: Unread::default(),
            bar: Bar::hidden(sizes),
            trace: None,
        }
    }
}
