//! What the fuzzers of `fuzz/` call, and here every input that they kept: bytes become a file or a command line,
//! and it is an error that names it, or what it says. Unix, because arguments are bytes.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use anyhow::Context;
use candle_core::{DType, Device, Tensor};
use clap::{Args, Command, FromArgMatches};
use concise::layers::Linear;
use concise::{DataParallel, Initializer, Sgd, Trainer};
use data_parallel::Checkpoints;
use dataset::Data;
use run::Run;
use tempfile::TempDir;

/// The file that is being read; where it is broken, the error has to have its name.
fn written(folder: &Path, name: &str, bytes: &[u8]) -> PathBuf {
    let path = folder.join(name);
    fs::write(&path, bytes).expect("a folder that can be written");
    path
}

/// The readers of datasets. The first byte says which file of a folder the others are.
pub fn idx(bytes: &[u8]) {
    const NAMES: [&str; 4] = [
        "train-images-idx3-ubyte",
        "train-labels-idx1-ubyte",
        "train-images-idx3-ubyte.gz",
        "train-labels-idx1-ubyte.gz",
    ];
    static FOLDERS: LazyLock<[TempDir; 4]> = LazyLock::new(|| NAMES.map(folder_without));
    let Some((which, bytes)) = bytes.split_first() else {
        return;
    };
    let which = usize::from(which % 4);
    let folder = FOLDERS[which].path();
    let path = written(folder, NAMES[which], bytes);
    let read = dataset::load(&dataset::Options {
        data: Some(Data::Dir(folder.into())),
        ..dataset::Options::default()
    });
    match read {
        Ok(data) => assert_eq!((data.train.len(), data.test.len()), (2, 2)),
        Err(error) => names(&path, &error),
    }
}

/// The files of two training and two test images, but for one.
fn folder_without(name: &str) -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    for part in ["train", "t10k"] {
        let images = [2051, 2, 28, 28].into_iter().flat_map(u32::to_be_bytes);
        let images: Vec<u8> = images.chain([7; 2 * dataset::PIXELS]).collect();
        let labels = [2049, 2].into_iter().flat_map(u32::to_be_bytes);
        let labels: Vec<u8> = labels.chain([3, 4]).collect();
        for (what, bytes) in [("images-idx3-ubyte", images), ("labels-idx1-ubyte", labels)] {
            let file = format!("{part}-{what}");
            if name.is_empty() || !name.starts_with(&file) {
                written(folder.path(), &file, &bytes);
            }
        }
    }
    folder
}

/// What reads parameters, for a small network.
pub fn weights(bytes: &[u8]) {
    static FOLDER: LazyLock<TempDir> = LazyLock::new(|| tempfile::tempdir().expect("a folder"));
    let zeros = |dims: &[usize], dtype| Tensor::zeros(dims, dtype, &Device::Cpu).expect("memory");
    let expected = [
        ("W".to_owned(), zeros(&[2, 3], DType::F32)),
        ("b".to_owned(), zeros(&[3], DType::F32)),
        ("n".to_owned(), zeros(&[], DType::I64)),
    ];
    let path = written(FOLDER.path(), "parameters.safetensors", bytes);
    match run::weights::load(&path, &expected) {
        Ok(tensors) => {
            for (tensor, (name, like)) in tensors.iter().zip(&expected) {
                assert_eq!(tensor.dims(), like.dims(), "{name}");
                assert_eq!(tensor.dtype(), like.dtype(), "{name}");
            }
        }
        Err(error) => names(&path, &error),
    }
}

/// What `--resume` reads: the bytes are the one checkpoint of a folder, with a checksum that is right, since a changed
/// one seldom has that.
pub fn checkpoint(bytes: &[u8]) {
    resumed(bytes);
}

/// Whether the run went on from these bytes; if not, the error names its folder.
pub fn resumed(bytes: &[u8]) -> bool {
    static FOLDERS: LazyLock<[TempDir; 2]> =
        LazyLock::new(|| [folder_without(""), tempfile::tempdir().expect("a folder")]);
    let [data, run] = FOLDERS.each_ref().map(TempDir::path);
    written(run, "checkpoint.safetensors", &sealed(bytes));
    written(
        run,
        "steps.csv",
        b"epoch,step,examples,loss\n1,1,1,2.5\n1,2,1,1.5\n2,3,1,0.5\n",
    );
    written(
        run,
        "epochs.csv",
        b"epoch,loss,test_acc,seconds\n1,2.5,0.5,0.25\n",
    );
    match goes_on(data, run) {
        Ok(()) => true,
        Err(error) => {
            names(run, &error);
            false
        }
    }
}

/// The checkpoint of a run of three epochs on two images that has begun.
pub fn checkpoint_of_a_run() -> anyhow::Result<Vec<u8>> {
    let data = folder_without("");
    let place = tempfile::tempdir()?;
    let mut run = small_run(data.path(), |_| ())?;
    let mut trainer = small_trainer()?;
    let mut checkpoints = Checkpoints::begin(place.path(), false, &mut trainer)?;
    checkpoints.own = run.kept()?;
    checkpoints.save(&trainer)?;
    Ok(fs::read(place.path().join("checkpoint.safetensors"))?)
}

/// Goes on with the run of three epochs in a folder, on two images: first what the library checks, then the record.
fn goes_on(data: &Path, folder: &Path) -> anyhow::Result<()> {
    let here = || format!("--resume {}", folder.display());
    Run::arguments_in(&Checkpoints::read_own(folder)?).with_context(here)?;
    let mut run = small_run(data, |options| {
        options.out = Some(folder.into());
        options.goes_on = true;
    })?;
    let checkpoints = Checkpoints::open(folder, &mut small_trainer()?)?;
    run.go_on(folder, &checkpoints.own, &[])
        .with_context(here)?;
    Ok(())
}

fn small_trainer() -> anyhow::Result<Trainer> {
    let net = DataParallel::new(&[Device::Cpu], Initializer::Layers, 0, |vb| {
        Linear::new(2, 3, vb)
    })?;
    Ok(Trainer::new(&net, functional::cross_entropy, Sgd::new(0.1)))
}

/// A run of three epochs on two images, before it begins.
pub fn small_run(data: &Path, set: impl FnOnce(&mut run::Options)) -> anyhow::Result<Run> {
    let book = run::Book {
        program: "small",
        section: "a network that is not trained",
        network: "Small",
        batch_size: |_| 1,
        lr: |_| 0.1,
    };
    let mut options = run::Options {
        gpus: Some(1),
        epochs: 3,
        data: Some(Data::Dir(data.into())),
        device: data_parallel::devices::DeviceKind::Cpu,
        threads: Some(1),
        ..run::Options::default()
    };
    set(&mut options);
    Run::start(&options, &book)
}

/// Puts the right checksum where one stands, if one does.
fn sealed(bytes: &[u8]) -> Vec<u8> {
    const SUM: &[u8] = b"\"crc32\":\"";
    let mut bytes = bytes.to_vec();
    let at = bytes.windows(SUM.len()).position(|window| window == SUM);
    let digits = at.map(|at| at + SUM.len()..at + SUM.len() + 8);
    if let Some(digits) = digits.filter(|digits| digits.end <= bytes.len()) {
        bytes[digits.clone()].fill(b'0');
        let sum = format!("{:08x}", crc32fast::hash(&bytes));
        bytes[digits].copy_from_slice(sum.as_bytes());
    }
    bytes
}

/// The command line of a program: the first byte says of which, the others are its arguments, each after a 0.
pub fn arguments(bytes: &[u8]) {
    let Some((which, bytes)) = bytes.split_first() else {
        return;
    };
    let args = bytes.split(|byte| *byte == 0).map(OsStr::from_bytes);
    match which % 2 {
        0 => parsed(args, |mut options: run::Options| {
            without_a_folder(&mut options);
            scratch::program::train(&options)
        }),
        _ => parsed(args, |mut options: concise::Options| {
            without_a_folder(&mut options.run);
            options.backend = concise::ProcessGroupBackend::Threads;
            concise::train(&options)
        }),
    }
}

/// Arguments that are options go on to what checks them; there, too, what is wrong is the user's to mend.
fn parsed<'a, O: Args + FromArgMatches>(
    args: impl Iterator<Item = &'a OsStr>,
    train: impl FnOnce(O) -> anyhow::Result<run::Summary>,
) {
    let command = O::augment_args(Command::new("program"));
    let args = args.map(OsString::from);
    match command.no_binary_name(true).try_get_matches_from(args) {
        Ok(matches) => {
            let options = O::from_arg_matches(&matches).expect("what clap has read");
            let error = train(options).expect_err("there is no folder");
            assert!(error.is::<run::BadInput>(), "{error:#}");
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// Nothing is trained, and nothing is written.
fn without_a_folder(options: &mut run::Options) {
    options.data = Some(Data::Dir("/no/such/folder".into()));
    options.device = data_parallel::devices::DeviceKind::Cpu;
    (options.out, options.trace, options.init) = (None, None, None);
}

/// An error names the file that is broken.
fn names(path: &Path, error: &dyn std::fmt::Display) {
    let (name, error) = (path.display().to_string(), format!("{error:#}"));
    assert!(error.contains(&name), "{error:?} does not name {name}");
}
