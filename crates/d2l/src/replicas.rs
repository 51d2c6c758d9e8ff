//! All replicas at once, each on its device and its share of the cores.

use std::sync::{Arc, Mutex};

use candle_core::{Device, Error, Result, bail};
use devices::{barrier, cores, cores_each, lock, on_replica};
use rayon::iter::plumbing::{Producer, ProducerCallback};
use rayon::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuilder};

/// The threads of the replicas, once [`share_cores`] has made them.
static THREADS: Mutex<Option<Arc<ThreadPool>>> = Mutex::new(None);

/// Runs `f` on all `devices` at once, on each with its own of `items`; returns the results in their order. It
/// is rayon's parallel iterator, in which an error names its replica as [`on_replica`](devices::on_replica) does. One
/// device alone needs no other thread.
///
/// No device begins before all have done their earlier work: one may still read what another writes next.
///
/// ```
/// let devices = d2l::devices(2)?;
/// let sums = d2l::on_each(&devices, ([1, 2], [10, 20]), |(a, b)| Ok(a + b))?;
/// assert_eq!(sums, [11, 22]);
/// # candle_core::Result::Ok(())
/// ```
///
/// # Errors
/// If there is not one item for each device, or a device fails.
pub fn on_each<I, T>(
    devices: &[Device],
    items: I,
    f: impl Fn(I::Item) -> Result<T> + Sync,
) -> Result<Vec<T>>
where
    I: IntoParallelIterator<Iter: IndexedParallelIterator>,
    T: Send,
{
    let items = items.into_par_iter();
    let k = devices.len();
    if items.len() != k || k == 0 {
        bail!("{} items for {k} devices; give one for each", items.len());
    }
    barrier(devices)?;
    if k == 1 {
        // on this thread: another one would have to be woken, and then wake this one
        let item = items.with_producer(One);
        let done = item.map(|item| on_replica(0, &devices[0], || f(item)));
        return done.into_iter().collect();
    }
    let replica = |(i, item)| {
        devices::threads::set_passes_at_once(k.min(rayon::current_num_threads()));
        let done = on_replica(i, &devices[i], || f(item));
        devices::threads::set_passes_at_once(1);
        done
    };
    let run = || items.enumerate().map(replica).collect();
    let threads = lock(&THREADS).clone();
    match threads {
        Some(threads) => threads.install(run),
        None => run(),
    }
}

/// Takes the first item of a parallel iterator, on the thread that calls it.
struct One;

impl<T> ProducerCallback<T> for One {
    type Output = Option<T>;

    fn callback<P: Producer<Item = T>>(self, items: P) -> Option<T> {
        items.into_iter().next()
    }
}

/// Gives each of `replicas` its share of the cores, and returns it: the operations of one
/// replica use that many threads. `threads` is the number of the whole run, by default that of [`cores`]. It may count
/// hyperthreads. More threads than can run at the same time only wait for each other, and are not used.
///
/// ```
/// assert_eq!(d2l::share_cores(None, 1), d2l::cores());
/// assert_eq!(d2l::share_cores(Some(1), 3), 1);
/// assert_eq!(d2l::cores(), 1);
/// ```
///
/// # Panics
/// Where [`try_share_cores`] is an error.
pub fn share_cores(threads: Option<usize>, replicas: usize) -> usize {
    try_share_cores(threads, replicas).expect("threads can be started")
}

/// Like [`share_cores`], but a failure is an error, not a panic.
///
/// # Errors
/// If the system starts no more threads.
pub fn try_share_cores(threads: Option<usize>, replicas: usize) -> Result<usize> {
    functional::threads::leave_the_cores_to_us();
    devices::limit_cores(threads);
    let share = cores_each(replicas);
    devices::threads::set_default(share);
    // a thread for each of several replicas, as more would cost a tenth of LeNet's step; the threads within one
    // are `functional`'s
    let k = replicas.clamp(1, cores());
    let mut threads = lock(&THREADS);
    let there = threads.as_ref().map(|pool| pool.current_num_threads());
    if there != Some(k) {
        let new = ThreadPoolBuilder::new()
            .num_threads(k)
            .thread_name(|i| format!("worker {i}"))
            .build();
        let failed = |error| Error::Msg(format!("a thread could not be started: {error}"));
        *threads = Some(Arc::new(new.map_err(failed)?));
    }
    Ok(share)
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::{DType, Tensor};
    use devices::{DeviceKind, devices_of_kind};

    /// candle's copies between replicas on one GPU have no order but that of `on_each`.
    #[test]
    #[ignore = "needs an NVIDIA GPU"]
    fn on_a_gpu_each_call_comes_after_the_work_of_all_devices() -> Result<()> {
        let n = 1000;
        let gpus = devices_of_kind(DeviceKind::Cuda, Some(3))?;
        let zeros = gpus.iter().map(|gpu| Tensor::zeros(n, DType::F32, gpu));
        let all = zeros.collect::<Result<Vec<_>>>()?;
        let mut copies = Vec::new();
        for round in 0..10 {
            on_each(&gpus, &all, |own| {
                own.slice_set(&Tensor::full(round as f32, n, own.device())?, 0, 0)
            })?;
            copies.push(on_each(&gpus, &gpus, |gpu| {
                let others = all.iter().filter(|own| !own.device().same_device(gpu));
                let of_others = others.map(|values| values.to_device(gpu));
                of_others.collect::<Result<Vec<_>>>()
            })?);
        }
        for (round, copies) in copies.iter().enumerate() {
            for copy in copies.iter().flatten() {
                assert_eq!(copy.to_vec1::<f32>()?, vec![round as f32; n]);
            }
        }
        Ok(())
    }
}
