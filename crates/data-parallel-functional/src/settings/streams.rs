//! Turns off the events that candle records for several streams on a GPU.

use candle_core::Device;

/// Tells candle that one stream uses the tensors of `device`. candle then records no events for tensors that are made
/// from now on: a step of LeNet makes 112 calls of the driver in place of 495.
///
/// The device cannot have a second stream for sums after that. On the CPU this does nothing.
///
/// ```
/// data_parallel_functional::one_stream(&candle_core::Device::Cpu);
/// ```
pub fn one_stream(device: &Device) {
    #[cfg(feature = "cuda")]
    if let Device::Cuda(device) = device {
        // Safety: the device's stream runs its work in order, and no other stream uses its tensors without an order.
        // Operations of another device refuse them. A copy to another device is ordered by `devices::to_device`;
        // candle's own copy is not, with its events or without. `collective::CommunicationStream` refuses a device
        // without events.
        unsafe { device.disable_event_tracking() }
    }
    let _ = device;
}
