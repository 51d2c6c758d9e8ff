//! Where replicas are: devices of this process, and the other processes.

use std::sync::Arc;

use candle_core::Device;

use crate::processes::Processes;

/// Where the replicas of a run are: the devices of this process, and the other processes. `&world` takes the place of a
/// list of devices in [`DataParallel::new`](crate::DataParallel::new).
#[derive(Clone)]
pub struct World {
    pub(crate) processes: Arc<Processes>,
    devices: Vec<Device>,
    pub(crate) notes: Vec<String>,
}

impl World {
    /// Devices of this process, among processes that you have started.
    pub fn of(processes: Arc<Processes>, devices: Vec<Device>) -> Self {
        Self {
            processes,
            devices,
            notes: Vec::new(),
        }
    }

    /// Those of this process alone.
    pub fn devices(&self) -> &[Device] {
        &self.devices
    }

    /// The processes that train together.
    pub fn processes(&self) -> &Arc<Processes> {
        &self.processes
    }

    /// True if this is the first process, which prints and writes.
    pub fn is_first(&self) -> bool {
        self.processes.rank() == 0
    }

    /// Lines that a program should show: why a GPU is not used.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }
}

/// Where the replicas of a network can be: devices of a process that is alone, or a [`World`].
pub trait Place {
    /// The devices of this process.
    fn devices(&self) -> &[Device];

    /// The processes that have replicas.
    fn processes(&self) -> Arc<Processes> {
        Arc::new(Processes::alone())
    }
}

impl Place for [Device] {
    fn devices(&self) -> &[Device] {
        self
    }
}

impl Place for Vec<Device> {
    fn devices(&self) -> &[Device] {
        self
    }
}

impl<const K: usize> Place for [Device; K] {
    fn devices(&self) -> &[Device] {
        self
    }
}

impl Place for World {
    fn devices(&self) -> &[Device] {
        &self.devices
    }

    fn processes(&self) -> Arc<Processes> {
        self.processes.clone()
    }
}
