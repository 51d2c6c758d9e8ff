//! The GPUs, and devices of replicas on them.

use anyhow::Result;
use candle_core::Device;
use devices::{DeviceKind, devices_of_kind, find_devices};

use super::report::Report;

/// The GPUs of this machine.
pub struct Machine {
    /// Devices of replicas: one for each GPU, then again from GPU 0 on if there are less than three. They are opened once,
    /// because each has its libraries and keeps its memory.
    devices: Vec<Device>,
    pub gpus: usize,
}

impl Machine {
    /// # Errors
    /// If there is no GPU.
    pub fn open(report: &mut Report) -> Result<Self> {
        let (gpus, note) = find_devices(DeviceKind::Cuda, None, None)?;
        if let Some(note) = note {
            report.check("GPUs", &note, false)?;
        }
        let gpus = gpus.len();
        let devices = devices_of_kind(DeviceKind::Cuda, Some(gpus.max(3)))?;
        Ok(Self { devices, gpus })
    }

    /// A device for each GPU.
    pub fn gpus(&self) -> &[Device] {
        self.replicas(self.gpus)
    }

    /// Devices of k replicas.
    pub fn replicas(&self, k: usize) -> &[Device] {
        &self.devices[..k]
    }

    /// Two replicas, or one for each GPU if there are more.
    pub fn several(&self) -> &[Device] {
        self.replicas(self.gpus.max(2))
    }
}
