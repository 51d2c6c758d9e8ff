//! Start of a run, before its first step: devices, data, and options that fit them.

use std::fs;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, ensure};
use candle_core::Device;
use candle_core::utils::cuda_is_available;
use d2l::try_share_cores;
use dataset::{DataIter, Dataset};
use functional::Precision;

use super::chosen::Chosen;
use crate::bad_input::BadInput;
use crate::gpu::{Gpu, gpu};
use crate::interrupt;
use crate::options::{Book, Options};
use crate::out_of_memory;
use crate::record::Record;
use crate::say::{is_quiet, one_line, say, set_quiet};
use crate::trace::Trace;
use devices::{GivenCores, Launched, Process, device_name, device_names, find_devices as find};
use training::files::check_is_file;

/// Sets what belongs to the whole process: how it computes, prints, and hears signals. Returns the cores of each
/// replica.
pub(super) fn set_up(
    process: Process,
    k: usize,
    options: &Options,
    devices: &[Device],
) -> Result<usize> {
    if process.of > 1 {
        interrupt::end_when(Arc::default()); // until the trainer says when
    }
    set_quiet(process.rank > 0);
    out_of_memory::run_on(devices);
    functional::set_precision(options.precision);
    functional::set_deterministic(options.deterministic);
    let threads = options.threads.or_else(|| process.share_of_cores(k));
    Ok(try_share_cores(threads, devices.len())?)
}

/// Prints what was chosen.
pub(super) fn print_start(chosen: &Chosen, options: &Options) {
    let on_cpu = chosen.devices[0].is_cpu();
    let mut lines = Vec::new();
    if on_cpu && options.precision == Precision::Bf16 {
        lines.push("--precision bf16 has no effect: the CPU computes in f32".to_owned());
    }
    let each = if on_cpu {
        let words = cores_of_each(devices::given_cores(), devices::cores(), chosen.share);
        format!(", {words}")
    } else {
        String::new()
    };
    lines.push(format!("{} on {}{each}", chosen.network, chosen.places));
    lines.extend(gpu_facts(chosen.devices));
    lines.push(format!(
        "batch size {}, lr {}, epochs {}, seed {}",
        chosen.sizes.batch, chosen.lr, chosen.sizes.epochs, options.seed
    ));
    lines.push(one_line(format_args!("{}", chosen.data.source.line)));
    let train = chosen.sizes.train;
    let test = chosen.sizes.test;
    lines.push(format!("{train} training and {test} test examples"));
    say(format_args!("{}", lines.join("\n")));
}

/// The `share` of each replica of the run's threads, which are cores or hyperthreads.
fn cores_of_each(given: &GivenCores, threads: usize, share: usize) -> String {
    let unit = if threads > given.cores {
        "hyperthreads"
    } else {
        "cores"
    };
    format!("{share} of {threads} {unit} each")
}

/// The devices, of many on the CPU the first and the last; or which replicas are in which process.
pub(super) fn places(devices: &[Device], process: Process, k: usize) -> String {
    if process.of > 1 {
        return format!(
            "{k} replicas in {} processes ({})",
            process.of,
            layout(process, k)
        );
    }
    match devices {
        [first, .., last] if devices.len() > 3 && first.is_cpu() => {
            let last = device_name(devices.len() - 1, last);
            format!("[{} … {last}]", device_name(0, first))
        }
        devices => device_names(devices),
    }
}

/// The replicas of each process, such as `0 1 | 2 | 3`; of many processes the first and the last.
fn layout(process: Process, k: usize) -> String {
    let of = |rank| {
        let replicas = Process { rank, ..process }.replicas(k);
        match replicas.len() {
            1 => format!("{}", replicas.start),
            2 => format!("{} {}", replicas.start, replicas.end - 1),
            _ => format!("{} to {}", replicas.start, replicas.end - 1),
        }
    };
    match process.of {
        ..=8 => (0..process.of).map(of).collect::<Vec<_>>().join(" | "),
        _ => format!("{} | {} | … | {}", of(0), of(1), of(process.of - 1)),
    }
}

/// A line for each GPU: its name, its memory, and how many replicas share it.
fn gpu_facts(devices: &[Device]) -> Vec<String> {
    struct Shared<'a> {
        name: String,
        device: &'a Device,
        replicas: usize,
    }
    let mut gpus: Vec<Shared<'_>> = Vec::new();
    for (i, device) in devices.iter().enumerate() {
        let name = device_name(i, device);
        match gpus.iter_mut().find(|gpu| gpu.name == name) {
            Some(gpu) => gpu.replicas += 1,
            None => gpus.push(Shared {
                name,
                device,
                replicas: 1,
            }),
        }
    }
    let line = |shared: Shared<'_>| {
        let Gpu { name, free, total } = gpu(shared.device)?;
        let [free, total] = [free, total].map(|bytes| bytes as f64 / f64::from(1 << 30));
        let sharing = match shared.replicas {
            1 => String::new(),
            n => format!(", shared by {n} replicas"),
        };
        Some(format!(
            "{}: {name}, {free:.1} of {total:.1} GiB free{sharing}",
            shared.name
        ))
    };
    gpus.into_iter().filter_map(line).collect()
}

pub(super) fn find_devices(
    process: Process,
    options: &Options,
) -> Result<(Vec<Device>, Option<String>)> {
    let of = process.of;
    let mut own = options.gpus;
    let mut first = None;
    if of > 1 {
        // each has one replica, if the user does not say how many there are
        let k = options.gpus.unwrap_or(of);
        ensure!(
            k >= of,
            "--gpus {k} is too few for {of} processes: each needs a replica; give --gpus {of} or more, or start fewer \
             processes"
        );
        first = process.first_here(k);
        own = Some(process.replicas(k).len());
    }
    devices::check_max_cpu_isa()?;
    let found = find(options.device, own, first);
    found.with_context(|| format!("--device {:?} cannot be used", options.device).to_lowercase())
}

/// The command with CUDA of a program that was built without it, to be added to a note on a GPU that is not used.
pub(super) fn with_cuda(process: Process, book: &Book, k: usize) -> String {
    if cuda_is_available() || process.of > 1 {
        return String::new();
    }
    format!(
        ": cargo run -p {} --features cuda -- --gpus {k}",
        book.program
    )
}

/// Settings on which the result of a run depends, a line each. The process of a replica is none of them.
pub(super) fn settings_of(chosen: &Chosen, options: &Options) -> String {
    let precision = options.precision;
    let deterministic = options.deterministic;
    let device = if chosen.devices[0].is_cpu() {
        "cpu".to_owned()
    } else {
        format!("cuda, {precision:?}, deterministic: {deterministic}").to_lowercase()
    };
    let init = match &options.init {
        Some(file) => file.display().to_string(),
        None => "random".to_owned(),
    };
    let order = if options.no_shuffle {
        "as in the file"
    } else {
        "shuffled"
    };
    let drawn = if chosen.data.source.is_synthetic {
        "synthetic "
    } else {
        ""
    };
    let [train, test] = [&chosen.data.train, &chosen.data.test].map(|split| split.checksum());
    let lines = [
        format!("network {}", chosen.network),
        format!("gpus {}", chosen.replicas),
        format!("arithmetic {device}"),
        format!("batch {}", chosen.sizes.batch),
        format!("lr {}", chosen.lr),
        format!("seed {}", options.seed),
        format!("init {init}"),
        format!("training-examples {}", chosen.sizes.train),
        format!("test-examples {}", chosen.sizes.test),
        format!("data-order {order}"),
        format!("images {drawn}{} {train:08x} {test:08x}", options.dataset),
    ];
    lines.join("\n")
}

/// The command line to keep. It says how many replicas there are, so the run can go on in other processes.
pub(super) fn arguments(options: &Options, k: usize) -> Vec<String> {
    let mut words = options.arguments.clone();
    if !words.iter().any(|word| word.starts_with("--gpus=")) {
        words.push(format!("--gpus={k}"));
    }
    words
}

/// An error if a launcher has started several processes that know nothing of each other: each would be a run of its own.
pub(super) fn check_launcher(process: Process) -> Result<()> {
    let Some(launched) = devices::launched().filter(|_| process.of == 1) else {
        return Ok(());
    };
    let Launched {
        variable,
        value,
        processes,
    } = launched;
    ensure!(
        processes <= 1,
        "{variable} is {value}: a launcher has started {processes} processes, and each would train by itself. Start \
         concise --backend mpi with mpirun, start one process, or unset {variable}"
    );
    Ok(())
}

pub(super) fn check_batch_size(batch_size: usize, k: usize) -> Result<()> {
    ensure!(
        batch_size >= k,
        "a minibatch of {batch_size} examples cannot be split over {k} devices: \
         choose --batch-size {k} or more, or fewer --gpus"
    );
    Ok(())
}

/// The training and the test set in the minibatches of this process: on its GPU, and its shards of each.
pub(super) fn iters(
    data: &Dataset,
    batch_size: usize,
    devices: &[Device],
    process: Process,
    k: usize,
) -> Result<(DataIter, DataIter)> {
    let of_process = |mut iter: DataIter, which: &str| {
        if !devices[0].is_cpu() {
            iter = iter.on_device(&devices[0])?;
            check_last_batch(&iter, which, k).map_err(BadInput::from)?;
        }
        if process.of > 1 {
            iter = iter.shards(process.replicas(k), k)?;
        }
        anyhow::Ok(iter.stop_when(interrupt::ends()))
    };
    let (train_iter, test_iter) = data.iters(batch_size)?;
    Ok((
        of_process(train_iter, "training")?,
        of_process(test_iter, "test")?,
    ))
}

/// A GPU cannot be left without an example: CUDA has no empty memory.
fn check_last_batch(iter: &DataIter, which: &str, k: usize) -> Result<()> {
    let examples = iter.num_examples();
    let batch_size = iter.batch_size();
    let last = examples - (iter.num_batches() - 1) * batch_size;
    ensure!(
        last >= k,
        "--batch-size {batch_size} leaves {last} of {examples} {which} examples for the last \
         minibatch, too few for {k} replicas on GPUs: choose another --batch-size"
    );
    Ok(())
}

/// Checks the files that were named, without reading them.
pub(super) fn check_paths(options: &Options) -> Result<()> {
    // what --init had is in the checkpoint of a run that goes on
    if let Some(file) = options.init.as_ref().filter(|_| !options.goes_on) {
        let found = fs::metadata(file).and_then(|found| check_is_file(&found));
        found.with_context(|| format!("--init {}", file.display()))?;
    }
    if is_quiet() {
        return Ok(());
    }
    if let Some(folder) = options.out.as_ref().filter(|_| !options.goes_on) {
        Record::check(folder, options.overwrite)?;
    }
    match &options.trace {
        Some(file) => Trace::check(file, options.out.as_deref(), options.overwrite),
        None => Ok(()),
    }
}

pub(super) fn load(options: &Options) -> Result<Dataset> {
    let options = options.dataset();
    let named = options.names_a_source();
    dataset::load(&options).map_err(|error| {
        if error.is::<dataset::Interrupted>() {
            error
        } else if named {
            BadInput::from(error).into()
        } else {
            // the library cannot name the program's options
            anyhow!("{error:#}; you can give --data DIR or --data synthetic")
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_threads_than_cores_are_hyperthreads() {
        let given = GivenCores {
            threads: 32,
            hyperthreads: 32,
            cores: 16,
            allowed: (0..32).collect(),
        };
        assert_eq!(cores_of_each(&given, 16, 8), "8 of 16 cores each");
        assert_eq!(cores_of_each(&given, 20, 10), "10 of 20 hyperthreads each");
    }

    #[test]
    fn replicas_are_named_by_process() {
        let of = |rank, local_rank| Process {
            rank,
            of: 3,
            local_rank,
            on_machine: 2,
            on_cores: 2,
        };
        assert_eq!(layout(of(0, 0), 4), "0 1 | 2 | 3");
        let sixteen = Process { of: 16, ..of(0, 0) };
        assert_eq!(layout(sixteen, 64), "0 to 3 | 4 to 7 | … | 60 to 63");
        assert_eq!(of(1, 1).replicas_here(4), 0..3);
        assert_eq!(of(2, 0).replicas_here(4), 3..4); // no rank 3
    }

    #[test]
    fn a_last_minibatch_that_is_too_short_for_the_gpus_is_named() -> Result<()> {
        let data = dataset::load(&dataset::Options {
            data: Some(dataset::Data::Synthetic),
            limit_train: Some(17),
            limit_test: Some(16),
            ..dataset::Options::default()
        })?;
        let (train_iter, test_iter) = data.iters(8)?;
        let error = check_last_batch(&train_iter, "training", 2).unwrap_err();
        assert!(error.to_string().contains("leaves 1 of 17"), "{error}");
        check_last_batch(&train_iter, "training", 1)?;
        check_last_batch(&test_iter, "test", 8)
    }
}
