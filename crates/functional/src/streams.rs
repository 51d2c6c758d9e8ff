//! What candle need not keep account of on a GPU.

use candle_core::Device;

/// Tells that nothing but `device` itself works on its tensors in this process: no second device on the
/// same GPU is handed one. Then candle no longer records who reads and writes each tensor that is made
/// from now on, which takes longer than the step of a small network. Without it nothing is wrong; with it,
/// a tensor that goes to another stream all the same may arrive before it was computed.
///
/// On the CPU it does nothing.
///
/// ```
/// functional::one_stream(&candle_core::Device::Cpu);
/// ```
pub fn one_stream(device: &Device) {
    #[cfg(feature = "cuda")]
    if let Device::Cuda(device) = device {
        // Safety: one stream keeps its own order, and the caller says that there is no other.
        unsafe { device.disable_event_tracking() }
    }
    let _ = device;
}
