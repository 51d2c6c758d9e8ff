//! The all-reduce of a network in a line: its algorithm, its buckets, its memory.

use candle_core::{Device, Result};
use collective::{Algorithm, Schedule};

use crate::data_parallel::DataParallel;
use crate::replication::ReduceOn;

impl DataParallel {
    /// How the replicas sum their gradients, and the memory that it takes on each device; nothing for one
    /// replica.
    ///
    /// ```
    /// use data_parallel::prelude::*;
    /// let devices = [Device::Cpu, Device::Cpu];
    /// let net = DataParallel::new(&devices, Initializer::Normal(0.01), 0, |vb| Linear::new(784, 10, vb))?;
    /// let expected = "all-reduce: owner, 0.0 MiB in 1 bucket, in place";
    /// assert_eq!(net.all_reduce()?.as_deref(), Some(expected));
    /// # data_parallel::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// If a replica has failed.
    pub fn all_reduce(&self) -> Result<Option<String>> {
        let (k, on_cpu) = (
            self.devices().len(),
            self.devices().iter().all(Device::is_cpu),
        );
        let params = self.states[0].parameters();
        let lens: Vec<usize> = params.map(|(_, param)| param.elem_count()).collect();
        let sizes = functional::bucket_sizes(&lens, self.how.bucket_bytes / size_of::<f32>());
        let largest = sizes.iter().max().copied().unwrap_or(0);
        let on_devices = !on_cpu && self.how.reduce_on == ReduceOn::Device;
        let bytes = largest * size_of::<f32>();
        let algorithm = self.how.allreduce.chosen(on_devices, k, bytes);
        let takes = match (on_cpu, on_devices) {
            (true, _) => "in place".to_owned(),
            (_, true) if algorithm == Algorithm::Nccl => format!(
                "on the devices: {} more on each; another layout of the replicas may give other last digits",
                mib(largest)
            ),
            // of several processes, one member of each sums
            (_, true) if !self.processes.are_one() => self.on_devices(Algorithm::Star, largest),
            (_, true) => self.on_devices(algorithm, largest),
            (_, false) => format!(
                "in the host's memory: {} more on each device, {} on the host",
                mib(largest),
                mib(k * largest)
            ),
        };
        let all = mib(sizes.iter().sum());
        let count = sizes.len();
        let s = if count == 1 { "" } else { "s" };
        let line = format!("all-reduce: {algorithm}, {all} in {count} bucket{s}, {takes}");
        Ok((k > 1 || !self.processes.are_one()).then_some(line))
    }

    fn on_devices(&self, algorithm: Algorithm, largest: usize) -> String {
        let schedule = Schedule::new(algorithm, self.devices().len());
        let on = |(rank, device)| {
            let more = mib(schedule.extra_memory(rank, largest));
            format!("{more} more on {}", devices::device_name(rank, device))
        };
        let devices: Vec<String> = self.devices().iter().enumerate().map(on).collect();
        format!("on the devices: {}", devices.join(", "))
    }
}

fn mib(elements: usize) -> String {
    let bytes = elements * size_of::<f32>();
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}
