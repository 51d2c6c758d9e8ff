//! What a run writes: its folder with tables and checkpoints, and its trace.

use crate::record::Record;
use crate::trace::Trace;

#[derive(Debug, Default)]
pub(super) struct Files {
    pub record: Option<Record>,
    pub trace: Option<Trace>,
    /// The step of the last checkpoint, whether or not it could be written.
    pub checkpointed: usize,
}

impl Files {
    /// Where an error leaves the reader.
    pub fn has_kept(&self) -> String {
        let kept = |record: &Record| {
            let (folder, kept) = (record.folder.path.display(), record.kept);
            format!("; {folder} holds the checkpoint of step {kept}")
        };
        self.record.as_ref().map(kept).unwrap_or_default()
    }
}
