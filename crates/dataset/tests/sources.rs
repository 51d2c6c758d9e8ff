//! Where the images come from: the order of the sources, and what the user sees when one of them fails.
//!
//! Environment variables decide, so every case runs in a process of its own: this binary again, as a child that
//! loads a dataset and prints what came of it. The Hub is a small HTTP server on this machine.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::{Result, ensure};
use dataset::{Data, Options};
use libtest_mimic::{Arguments, Failed, Trial};
use tempfile::tempdir;

#[path = "fixtures/idx.rs"]
mod idx;
use idx::write_idx;

/// Set in the child; its value is what `--data` says.
const CHILD: &str = "DATASET_TEST_CHILD";
/// Which dataset the child loads.
const NAME: &str = "DATASET_TEST_NAME";

const FILES: [&str; 4] = [
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
];

macro_rules! trials {
    ($($test:ident),* $(,)?) => {
        [$(Trial::test(stringify!($test), || {
            $test().map_err(|error| Failed::from(format!("{error:#}")))
        })),*]
    };
}

fn main() {
    if let Ok(data) = std::env::var(CHILD) {
        return child(&data);
    }
    let mut trials = Vec::from(trials![
        a_named_folder_is_used,
        a_named_folder_is_never_passed_over,
        a_package_of_the_system_is_used_before_the_hub,
        data_and_the_variable_may_say_synthetic,
        other_names_are_shown,
    ]);
    let published = std::env::var_os("FASHION_MNIST_DIR").map(PathBuf::from);
    let is_there = published.is_some();
    let known = move || the_published_files_are_known(&published.unwrap_or_default());
    let known = move || known().map_err(|error| Failed::from(format!("{error:#}")));
    let known = Trial::test("the_published_files_are_known", known);
    trials.push(known.with_ignored_flag(!is_there));
    #[cfg(feature = "hub")]
    trials.extend(hub::trials());
    #[cfg(not(feature = "hub"))]
    trials.extend(trials![without_the_feature_hub_the_images_are_synthetic]);
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}

/// Loads Fashion-MNIST, or the dataset in [`NAME`], and prints its source, its sizes, and a digest of its images and labels; or the error.
fn child(data: &str) {
    let name = std::env::var(NAME).map(|name| name.parse().unwrap());
    let options = Options {
        name: name.unwrap_or_default(),
        data: (!data.is_empty()).then(|| Data::from(data)),
        // The synthetic set is there for its source only; a small one will do.
        limit_train: std::env::var("LIMIT").ok().map(|n| n.parse().unwrap()),
        limit_test: Some(200),
        stop: std::env::var_os("STOPS").map(|_| until_the_input_ends()),
        ..Options::default()
    };
    match dataset::load(&options) {
        Ok(data) => {
            let (train, test) = (&data.train, &data.test);
            let examples = [train, test]
                .into_iter()
                .flat_map(|part| (0..part.len()).map(|i| (part.label(i), part.image(i).to_vec())));
            let digest = digest(examples);
            let (line, n, m) = (&data.source.line, train.len(), test.len());
            println!("{line}; {n} + {m}, {digest}");
        }
        Err(error) => println!("error: {error:#} (named: {})", options.names_a_source()),
    }
}

/// A flag that is set when no more can come from stdin.
fn until_the_input_ends() -> Arc<AtomicBool> {
    let flag = Arc::new(AtomicBool::new(false));
    let stop = flag.clone();
    thread::spawn(move || {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        stop.store(true, Ordering::Relaxed);
    });
    flag
}

/// A digest of labels and images.
fn digest(examples: impl Iterator<Item = (u8, Vec<u8>)>) -> String {
    let mut digest = crc32fast::Hasher::new();
    for (label, image) in examples {
        digest.update(&[label]);
        digest.update(&image);
    }
    format!("digest {:08x}", digest.finalize())
}

fn run(data: &str, variables: &[(&str, &str)]) -> Output {
    child_with(data, variables).output().unwrap()
}

/// The child with this `--data` and these variables, and with none of those that happen to be set here.
fn child_with(data: &str, variables: &[(&str, &str)]) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let datasets = ["FASHION_MNIST_DIR", "MNIST_DIR"];
    let of_the_hub = [
        "HF_HUB_CACHE",
        "HUGGINGFACE_HUB_CACHE",
        "HF_HUB_OFFLINE",
        "HTTP_PROXY",
        "http_proxy",
    ];
    for unset in datasets.iter().chain(&of_the_hub) {
        command.env_remove(unset);
    }
    command
        .env(CHILD, data)
        .env("XDG_DATA_DIRS", "/no/such/folder")
        .env("LIMIT", "100")
        .env("NO_PROXY", "*");
    command.envs(variables.iter().copied());
    command
}

/// Checks that stdout contains `says`, and that stderr is empty.
fn prints(output: &Output, says: &str) -> Result<()> {
    warns(output, says, "")
}

/// Checks that stdout contains `says`, and that stderr is nothing, or contains `warns`.
fn warns(output: &Output, says: &str, warns: &str) -> Result<()> {
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(stdout.contains(says), "no {says:?} in:\n{stdout}{stderr}");
    let warned = warns.is_empty() == stderr.is_empty() && stderr.contains(warns);
    ensure!(warned, "stderr should say {warns:?}:\n{stderr}");
    Ok(())
}

/// Four raw IDX files: 12 training images and labels, and one test image.
fn write_folder(dir: &Path) -> Result<()> {
    Ok(write_idx(dir, 12, 1, "")?)
}

fn a_named_folder_is_used() -> Result<()> {
    let dir = tempdir()?;
    write_folder(dir.path())?;
    let path = dir.path().to_str().unwrap();
    let example = |k: usize| {
        let pixels = (0..784).map(move |i| ((k * 784 + i) % 10) as u8);
        ((k % 10) as u8, pixels.collect())
    };
    let digest = digest((0..12).chain(0..1).map(example));
    let says =
        format!("fashion-mnist from {path} (4 IDX files, none as published); 12 + 1, {digest}");
    prints(&run(path, &[]), &says)?;
    prints(&run("", &[("FASHION_MNIST_DIR", path)]), &says)
}

fn a_named_folder_is_never_passed_over() -> Result<()> {
    let dir = tempdir()?;
    let path = dir.path().to_str().unwrap();
    let lacks = format!("folder {path} lacks train-images-idx3-ubyte, ");
    let says = format!("error: cannot load fashion-mnist from {path}: {lacks}");
    prints(&run(path, &[]), &says)?;
    let output = run("", &[("FASHION_MNIST_DIR", path)]);
    prints(&output, &says)?;
    prints(&output, "(named: true)")
}

fn a_package_of_the_system_is_used_before_the_hub() -> Result<()> {
    let share = tempdir()?;
    let dir = share.path().join("datasets").join("fashion-mnist");
    std::fs::create_dir_all(&dir)?;
    write_folder(&dir)?;
    let dirs = std::env::join_paths([Path::new("/no/such/folder"), share.path()])?;
    let dirs = [("XDG_DATA_DIRS", dirs.to_str().unwrap())];
    let says = format!(
        "fashion-mnist from {} (4 IDX files, none as published); 12 + 1",
        dir.display()
    );
    prints(&run("", &dirs), &says)?;
    // what was named comes first
    prints(&run("synthetic", &dirs), "fashion-mnist (asked for)")
}

fn data_and_the_variable_may_say_synthetic() -> Result<()> {
    let says = "synthetic images in place of fashion-mnist (asked for); 100 + 200";
    prints(&run("", &[("FASHION_MNIST_DIR", "synthetic")]), says)?;
    // `--data` goes before the variable
    prints(&run("synthetic", &[("FASHION_MNIST_DIR", "nowhere")]), says)
}

/// What a folder has where it lacks the files: under other names, or in a folder below.
fn other_names_are_shown() -> Result<()> {
    let lacks = |dir: &Path, says: &str| prints(&run(dir.to_str().unwrap(), &[]), says);
    let dir = tempdir()?;
    lacks(dir.path(), "(with or without .gz); it is empty")?;
    for name in ["a.png", "b.png", "c.png", "d.png", "e.png"] {
        std::fs::write(dir.path().join(name), "")?;
    }
    lacks(dir.path(), "; it has a.png, b.png, c.png, d.png and more")?;
    let raw = dir.path().join("FashionMNIST").join("raw");
    std::fs::create_dir_all(&raw)?;
    write_folder(&raw)?;
    let below = format!("; they are in {}: name that folder", raw.display());
    lacks(dir.path(), &below)?;
    let from = raw.join("train-images-idx3-ubyte");
    std::fs::rename(&from, raw.join("TRAIN-images.idx3-ubyte.gz"))?;
    let rename = "lacks train-images-idx3-ubyte (with or without .gz); rename \
                  TRAIN-images.idx3-ubyte.gz to train-images-idx3-ubyte.gz (named: true)";
    lacks(&raw, rename)
}

/// The published files tell what they are, whatever their folder and their names say. Where `FASHION_MNIST_DIR` has
/// them, it is tried with these.
fn the_published_files_are_known(published: &Path) -> Result<()> {
    let (dir, raw) = (tempdir()?, tempdir()?);
    for file in FILES {
        let packed = std::fs::read(published.join(format!("{file}.gz")))?;
        std::fs::write(dir.path().join(format!("{file}.gz")), &packed)?;
        let mut bytes = Vec::new();
        flate2::read::GzDecoder::new(&packed[..]).read_to_end(&mut bytes)?;
        std::fs::write(raw.path().join(file), bytes)?;
    }
    for dir in [&dir, &raw] {
        let dir = dir.path().to_str().unwrap();
        prints(&run(dir, &[]), "(4 IDX files, MD5 as published); 100 + 200")?;
        let other = format!(
            "error: cannot load mnist from {dir}: these are the files of fashion-mnist, not of mnist; for \
             fashion-mnist give --dataset fashion-mnist --data {dir} (named: true)"
        );
        prints(&run(dir, &[(NAME, "mnist")]), &other)?;
    }
    // the test set for training: its images alone would be 10,000 for 60,000 labels
    for (to, from) in [(FILES[0], FILES[2]), (FILES[1], FILES[3])] {
        std::fs::copy(raw.path().join(from), raw.path().join(to))?;
    }
    let as_training = "train-images-idx3-ubyte is fashion-mnist's t10k-images-idx3-ubyte, ";
    let output = run(raw.path().to_str().unwrap(), &[]);
    prints(&output, as_training)?;
    prints(
        &output,
        "; put the files of fashion-mnist there (named: true)",
    )?;
    // one of the four is another
    std::fs::remove_file(dir.path().join("t10k-labels-idx1-ubyte.gz"))?;
    let labels = [2049, 10_000].into_iter().flat_map(u32::to_be_bytes);
    let labels: Vec<u8> = labels.chain((0..10_000).map(|i| (i % 10) as u8)).collect();
    std::fs::write(dir.path().join("t10k-labels-idx1-ubyte"), labels)?;
    let path = dir.path().to_str().unwrap();
    let says = "(4 IDX files, 3 with the MD5 as published); 100 + 200";
    let own = "t10k-labels-idx1-ubyte is not fashion-mnist's: its data has the MD5 sum ";
    warns(&run(path, &[]), says, own)?;
    let mixed = "train-images-idx3-ubyte.gz is fashion-mnist's train-images-idx3-ubyte, ";
    prints(&run(path, &[(NAME, "mnist")]), mixed)
}

#[cfg(not(feature = "hub"))]
fn without_the_feature_hub_the_images_are_synthetic() -> Result<()> {
    let says = "synthetic images in place of fashion-mnist (built without the feature `hub`";
    prints(&run("", &[("FASHION_MNIST_DIR", "")]), says)
}

/// A Hub on this machine: what it answers, and what becomes of it.
#[cfg(feature = "hub")]
mod hub {
    use std::fs;
    use std::io::{BufRead, BufReader, Write};
    use std::net::{TcpListener, TcpStream};
    use std::process::Stdio;
    use std::sync::atomic::AtomicUsize;
    use std::sync::mpsc;
    use std::time::{Duration, Instant};

    use sha2::Digest;

    use super::*;

    pub fn trials() -> Vec<Trial> {
        #[cfg_attr(not(unix), expect(unused_mut))]
        let mut trials = Vec::from(trials![
            a_hub_that_cannot_be_reached_means_synthetic_images,
            an_answer_500_is_an_error_with_the_ways_out,
            a_broken_endpoint_is_an_error,
            a_download_is_decoded_and_cached,
            offline_the_hub_is_not_asked,
            without_certificates_the_images_are_synthetic,
            other_bytes_than_the_hub_says_are_an_error,
            a_file_damaged_in_the_cache_is_an_error,
            a_download_that_stands_still_is_given_up,
            a_download_ends_when_it_is_asked_to,
            a_killed_download_is_not_taken_for_a_file,
            two_processes_download_once,
            a_broken_image_is_an_error_without_a_panic,
        ]);
        #[cfg(unix)]
        trials.extend(trials![
            a_link_in_the_cache_cannot_lead_out_of_it,
            a_cache_may_have_copies_in_place_of_links,
        ]);
        #[cfg(target_os = "linux")]
        trials.extend(trials![where_a_lock_keeps_nobody_away_each_gets_the_images]);
        trials
    }

    const LOADED: &str = "fashion-mnist from the Hugging Face Hub; 100 + 200";
    const NOT_LOADED: &str = "error: cannot load fashion-mnist from the Hugging Face Hub";
    const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

    /// The dataset's folder in the cache of this `HF_HOME`.
    fn cache(home: &Path) -> PathBuf {
        home.join("hub/datasets--zalando-datasets--fashion_mnist")
    }

    /// What is in this folder.
    fn left(home: &Path) -> Result<Vec<std::ffi::OsString>> {
        let names = fs::read_dir(cache(home))?.map(|entry| Ok(entry?.file_name()));
        let mut names = names.collect::<Result<Vec<_>>>()?;
        names.sort();
        Ok(names)
    }

    /// What is in it when no download goes on, and none was broken off.
    const WHOLE: [&str; 3] = ["blobs", "refs", "snapshots"];

    /// The address of a port on which no server listens.
    fn closed() -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        format!("http://{}", listener.local_addr().unwrap())
    }

    /// The address of a server that gives every connection to `answer`, in a thread of its own.
    fn serve(answer: impl Fn(TcpStream) + Send + Sync + 'static) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let answer = Arc::new(answer);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let answer = answer.clone();
                thread::spawn(move || answer(stream.unwrap()));
            }
        });
        address
    }

    /// The address of a server that answers every request, of which `answer` gets the method and the path.
    fn hub(answer: impl Fn(&str, &str) -> Vec<u8> + Send + Sync + 'static) -> String {
        serve(move |mut stream| {
            let (method, path) = request(&stream);
            let _ = stream.write_all(&answer(&method, &path));
        })
    }

    /// Reads one request.
    fn request(stream: &TcpStream) -> (String, String) {
        let lines = BufReader::new(stream).lines().map_while(Result::ok);
        let head: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
        let mut words = head.first().map_or("", String::as_str).split(' ');
        let mut word = || words.next().unwrap_or_default().to_owned();
        (word(), word())
    }

    fn answer(status: &str, headers: &str, body: &[u8]) -> Vec<u8> {
        let head = format!("HTTP/1.1 {status}\r\n{headers}Connection: close\r\n\r\n");
        [head.as_bytes(), body].concat()
    }

    /// What a mirror of the Hub answers for a file of these bytes.
    fn file(method: &str, bytes: &[u8]) -> Vec<u8> {
        let (n, sum) = (bytes.len(), sum(bytes));
        let says = format!("Content-Length: {n}\r\nETag: \"{sum}\"\r\nX-Repo-Commit: {COMMIT}\r\n");
        answer("200 OK", &says, if method == "HEAD" { &[] } else { bytes })
    }

    /// What [`file`] answers, but for the second half of the file.
    fn half(method: &str, path: &str) -> Vec<u8> {
        let bytes = parquet(path);
        let mut answer = file(method, &bytes);
        if method == "GET" {
            answer.truncate(answer.len() - bytes.len() / 2);
        }
        answer
    }

    /// What [`file`] answers, with another length.
    fn announcing(method: &str, path: &str) -> Vec<u8> {
        let mut bytes = file(method, &parquet(path));
        let says = format!("HTTP/1.1 200 OK\r\nX-Linked-Size: {}\r\n", i64::MAX);
        bytes.splice(.."HTTP/1.1 200 OK\r\n".len(), says.into_bytes());
        bytes
    }

    /// The training or the test file: 60,000 or 10,000 images, of which ten differ: see [`example`].
    fn parquet(path: &str) -> Vec<u8> {
        let packed = if path.contains("/train/") {
            include_bytes!("data/train.parquet.gz").as_slice()
        } else {
            include_bytes!("data/test.parquet.gz").as_slice()
        };
        let mut bytes = Vec::new();
        let mut unpacked = flate2::read::GzDecoder::new(packed);
        unpacked.read_to_end(&mut bytes).unwrap();
        bytes
    }

    /// Label and image `k` of both files.
    fn example(k: usize) -> (u8, Vec<u8>) {
        let pixels = (0..784).map(|i| (i * (k % 10 + 1)) as u8);
        ((k % 10) as u8, pixels.collect())
    }

    /// The SHA-256 as it is written.
    fn sum(bytes: &[u8]) -> String {
        let sum = sha2::Sha256::digest(bytes);
        sum.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// A Hub that is well.
    fn good() -> String {
        hub(|method, path| file(method, &parquet(path)))
    }

    /// A Hub that says all there is to say on a redirect, as the real one does: to the store that sends the bytes, made
    /// other than they were by `spoil`.
    fn redirecting(spoil: fn(&mut Vec<u8>)) -> String {
        let store = hub(move |_, path| {
            let mut bytes = parquet(path);
            spoil(&mut bytes);
            let says = format!("Content-Length: {}\r\nETag: \"other\"\r\n", bytes.len());
            answer("200 OK", &says, &bytes)
        });
        hub(move |_, path| {
            // the old name of the dataset leads to the new one, of which the Hub speaks
            let Some(path) = path.strip_prefix("/moved") else {
                let says = format!("Location: /moved{path}\r\nContent-Length: 0\r\n");
                return answer("307 Moved", &says, &[]);
            };
            let bytes = parquet(path);
            let (n, sum) = (bytes.len(), sum(&bytes));
            let says = format!(
                "Location: {store}{path}\r\nX-Linked-Size: {n}\r\nX-Linked-ETag: \"{sum}\"\r\n\
                 ETag: \"a pointer's\"\r\nX-Repo-Commit: {COMMIT}\r\nContent-Length: 0\r\n"
            );
            answer("302 Found", &says, &[])
        })
    }

    /// Loads with this endpoint and this `HF_HOME`.
    fn load(endpoint: &str, home: &Path) -> Output {
        from(endpoint, home).output().unwrap()
    }

    fn from(endpoint: &str, home: &Path) -> Command {
        let home = home.to_str().unwrap();
        let mut child = child_with("", &[("HF_ENDPOINT", endpoint), ("HF_HOME", home)]);
        // an empty variable counts as unset
        child.env("FASHION_MNIST_DIR", "");
        child
    }

    fn a_hub_that_cannot_be_reached_means_synthetic_images() -> Result<()> {
        let silent = serve(|stream| {
            thread::sleep(Duration::from_secs(60));
            drop(stream);
        });
        for (hub, why) in [
            (closed(), "cannot be reached: Connection refused"),
            (serve(drop), "cannot be reached: "),
            (silent, "gave no answer within 5 s)"),
        ] {
            let start = Instant::now();
            let says = "synthetic images in place of fashion-mnist (the Hugging Face Hub ";
            prints(&load(&hub, tempdir()?.path()), &format!("{says}{why}"))?;
            let took = start.elapsed();
            ensure!(took < Duration::from_secs(8), "{why}: it took {took:?}");
        }
        Ok(())
    }

    fn an_answer_500_is_an_error_with_the_ways_out() -> Result<()> {
        let broken = hub(|_, _| answer("500 Oh no", "Content-Length: 0\r\n", &[]));
        let output = load(&broken, tempdir()?.path());
        let ways_out = "name a folder with the four IDX files (FASHION_MNIST_DIR), or use the synthetic images";
        for says in [NOT_LOADED, ways_out, "500", "(named: false)"] {
            prints(&output, says)?;
        }
        Ok(())
    }

    fn a_broken_endpoint_is_an_error() -> Result<()> {
        prints(&load("no address", tempdir()?.path()), NOT_LOADED)
    }

    fn a_download_is_decoded_and_cached() -> Result<()> {
        let digest = digest((0..60_000).chain(0..200).map(example));
        for hub in [good(), redirecting(|_| {})] {
            let home = tempdir()?;
            let load = |hub| from(hub, home.path()).env("LIMIT", "60000").output();
            let all = format!("the Hugging Face Hub; 60000 + 200, {digest}");
            prints(&load(&hub)?, &format!("fashion-mnist from {all}"))?;
            let cached = format!("fashion-mnist from an earlier download from {all}");
            prints(&load(&closed())?, &cached)?;
            let left = left(home.path())?;
            ensure!(left == WHOLE, "{left:?}");
        }
        Ok(())
    }

    fn offline_the_hub_is_not_asked() -> Result<()> {
        let home = tempdir()?;
        let asked = Arc::new(AtomicUsize::new(0));
        let counter = asked.clone();
        let hub = hub(move |method, path| {
            counter.fetch_add(1, Ordering::Relaxed);
            file(method, &parquet(path))
        });
        let load = |says| from(&hub, home.path()).env("HF_HUB_OFFLINE", says).output();
        let offline = "synthetic images in place of fashion-mnist (HF_HUB_OFFLINE is set, ";
        prints(&load("1")?, offline)?;
        prints(&load("True")?, offline)?;
        ensure!(asked.load(Ordering::Relaxed) == 0, "the Hub was asked");
        prints(&load("0")?, LOADED)?;
        prints(&load("1")?, "fashion-mnist from an earlier download from")
    }

    /// As in a container that has none.
    fn without_certificates_the_images_are_synthetic() -> Result<()> {
        let home = tempdir()?;
        let mut child = from(&closed(), home.path());
        let output = child.env("SSL_CERT_FILE", "/dev/null").output()?;
        prints(&output, "synthetic images in place of fashion-mnist (")
    }

    /// A cache that was copied to a file system without links, or by a program that makes none.
    #[cfg(unix)]
    fn a_cache_may_have_copies_in_place_of_links() -> Result<()> {
        let home = tempdir()?;
        prints(&load(&good(), home.path()), LOADED)?;
        for file in cached(home.path()) {
            let bytes = fs::read(&file)?;
            fs::remove_file(&file)?;
            fs::write(&file, bytes)?;
        }
        let from_cache = "fashion-mnist from an earlier download from";
        prints(&load(&closed(), home.path()), from_cache)?;
        damage(home.path())?;
        prints(
            &load(&closed(), home.path()),
            "train/0000.parquet is damaged: ",
        )?;
        // another program keeps no data beside its copies
        fs::remove_dir_all(cache(home.path()).join("blobs"))?;
        for (file, part) in cached(home.path()).iter().zip(["/train/", "/test/"]) {
            fs::write(file, parquet(part))?;
        }
        prints(&load(&closed(), home.path()), from_cache)
    }

    /// They leave no trace: then a good Hub is asked.
    fn other_bytes_than_the_hub_says_are_an_error() -> Result<()> {
        let other = " bytes with the SHA-256 ";
        for (bad, says) in [
            (hub(half), "end of file before message length reached"),
            (redirecting(|bytes| bytes.truncate(1000)), other),
            (redirecting(|bytes| bytes.extend([0; 1000])), other),
            (redirecting(|bytes| bytes[1000] ^= 1), other),
            (
                hub(announcing),
                "the Hub announces 9223372036854775807 bytes",
            ),
        ] {
            let home = tempdir()?;
            let output = load(&bad, home.path());
            let file = "cannot download fashion_mnist/train/0000.parquet: ";
            prints(&output, file)?;
            prints(&output, says)?;
            prints(&load(&closed(), home.path()), "synthetic images")?;
            prints(&load(&good(), home.path()), LOADED)?;
        }
        Ok(())
    }

    /// The files that hf-hub reads: links, or copies.
    fn cached(home: &Path) -> [PathBuf; 2] {
        ["train", "test"].map(|part| {
            let snapshot = cache(home).join("snapshots").join(COMMIT);
            snapshot.join(format!("fashion_mnist/{part}/0000.parquet"))
        })
    }

    fn damage(home: &Path) -> Result<()> {
        for file in cached(home) {
            let mut bytes = fs::read(&file)?;
            bytes[100] ^= 4;
            fs::write(file, bytes)?;
        }
        Ok(())
    }

    fn a_file_damaged_in_the_cache_is_an_error() -> Result<()> {
        let home = tempdir()?;
        prints(&load(&good(), home.path()), LOADED)?;
        damage(home.path())?;
        let output = load(&closed(), home.path());
        prints(&output, "train/0000.parquet is damaged: ")?;
        prints(&output, "remove these files to download them again")
    }

    /// A Hub that sends half of a file, says so, and then nothing.
    fn standing_still() -> (String, mpsc::Receiver<()>) {
        let (half_sent, sent) = mpsc::channel();
        let hub = serve(move |mut stream| {
            let (method, path) = request(&stream);
            let _ = stream.write_all(&half(&method, &path));
            if method == "GET" {
                let _ = half_sent.send(());
                thread::sleep(Duration::from_secs(120));
            }
        });
        (hub, sent)
    }

    fn a_download_that_stands_still_is_given_up() -> Result<()> {
        let ((hub, _sent), home) = (standing_still(), tempdir()?);
        let mut child = from(&hub, home.path());
        let output = child.env("HF_HUB_DOWNLOAD_TIMEOUT", "1").output()?;
        prints(&output, "timed out")
    }

    fn a_download_ends_when_it_is_asked_to() -> Result<()> {
        let ((hub, sent), home) = (standing_still(), tempdir()?);
        let mut child = from(&hub, home.path());
        let pipes = child.env("STOPS", "").stdin(Stdio::piped());
        let child = pipes
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        sent.recv_timeout(Duration::from_secs(30))?; // it is in the middle of the file
        prints(
            &child.wait_with_output()?,
            "interrupted while the dataset was loaded",
        ) // its input ends
    }

    fn a_killed_download_is_not_taken_for_a_file() -> Result<()> {
        let ((hub, sent), home) = (standing_still(), tempdir()?);
        let mut child = from(&hub, home.path()).spawn()?;
        sent.recv_timeout(Duration::from_secs(30))?;
        thread::sleep(Duration::from_millis(300)); // it writes what came
        child.kill()?;
        child.wait()?;
        prints(&load(&closed(), home.path()), "synthetic images")?;
        #[cfg(unix)]
        for folder in fs::read_dir(cache(home.path()))? {
            let days_ago = std::time::SystemTime::now() - Duration::from_secs(50 * 3600);
            fs::File::open(folder?.path())?.set_modified(days_ago)?;
        }
        prints(&load(&good(), home.path()), LOADED)?;
        let left = left(home.path())?;
        ensure!(!cfg!(unix) || left == WHOLE, "{left:?}");
        Ok(())
    }

    fn two_processes_download_once() -> Result<()> {
        let home = tempdir()?;
        let gets = Arc::new(AtomicUsize::new(0));
        let counter = gets.clone();
        let hub = hub(move |method, path| {
            if method == "GET" {
                counter.fetch_add(1, Ordering::Relaxed);
                thread::sleep(Duration::from_secs(1));
            }
            file(method, &parquet(path))
        });
        let mut second = from(&hub, home.path());
        let second = thread::spawn(move || second.output().unwrap());
        let mut outputs = [load(&hub, home.path()), second.join().expect("no panic")];
        // the one that waited says so
        outputs.sort_by_key(|output| output.stderr.len());
        prints(&outputs[0], "the Hugging Face Hub; 100 + 200")?;
        let waits = "another process is downloading fashion-mnist";
        warns(&outputs[1], "the Hugging Face Hub; 100 + 200", waits)?;
        let n = gets.load(Ordering::Relaxed);
        ensure!(n == 2, "{n} downloads of two files");
        Ok(())
    }

    /// As on network file systems whose locks hold for one host. Here each process has a folder of locks of its own.
    #[cfg(target_os = "linux")]
    fn where_a_lock_keeps_nobody_away_each_gets_the_images() -> Result<()> {
        let home = tempdir()?;
        fs::create_dir(home.path().join("hub"))?;
        std::os::unix::fs::symlink("/proc/self/cwd", home.path().join("hub/.locks"))?;
        let hub = hub(|method, path| {
            if method == "GET" {
                thread::sleep(Duration::from_secs(1));
            }
            file(method, &parquet(path))
        });
        let processes: Vec<_> = (0..3)
            .map(|i| {
                let mut process = from(&hub, home.path());
                thread::spawn(move || {
                    let own = tempdir().unwrap();
                    // one begins while others are in the middle of it
                    thread::sleep(Duration::from_millis(400 * i));
                    process.current_dir(own.path()).output().unwrap()
                })
            })
            .collect();
        for process in processes {
            prints(
                &process.join().expect("no panic"),
                "the Hugging Face Hub; 100 + 200",
            )?;
        }
        prints(&load(&closed(), home.path()), "from an earlier download")
    }

    /// What is in the cache in place of a file, and leads elsewhere or cannot be compared, is neither read nor removed.
    #[cfg(unix)]
    fn a_link_in_the_cache_cannot_lead_out_of_it() -> Result<()> {
        let folder = tempdir()?;
        let home = folder.path().join("home");
        prints(&load(&good(), &home), LOADED)?;
        let (repo, file) = (cache(&home), "fashion_mnist/train/0000.parquet");
        let pointer = repo.join("snapshots").join(COMMIT).join(file);
        let outside = folder.path().join(sum(&parquet("/train/")));
        let inside = repo.join("blobs/no-sum");
        let unnamed = ", a file not named by its SHA-256";
        for (target, says) in [(&outside, " links to "), (&inside, unnamed)] {
            fs::write(target, parquet("/train/"))?;
            fs::remove_file(&pointer)?;
            std::os::unix::fs::symlink(target, &pointer)?;
            let output = load(&good(), &home);
            prints(&output, says)?;
            prints(&output, &format!(": remove {}", pointer.display()))?;
            ensure!(fs::read(target)? == parquet("/train/"), "it was changed");
        }
        // a commit that would lead out of the cache
        let elsewhere = folder.path().join(file);
        fs::create_dir_all(elsewhere.parent().unwrap())?;
        fs::write(&elsewhere, "a precious file")?;
        fs::write(repo.join("refs/refs/convert/parquet"), "../../../..")?;
        prints(&load(&good(), &home), LOADED)?;
        ensure!(fs::read(elsewhere)? == b"a precious file", "it was changed");
        Ok(())
    }

    fn a_broken_image_is_an_error_without_a_panic() -> Result<()> {
        let hub = hub(|method, path| {
            let mut bytes = parquet(path);
            let png = bytes.windows(4).position(|four| four == b"\x89PNG");
            bytes[png.unwrap()..][..4].fill(0);
            file(method, &bytes)
        });
        let output = load(&hub, tempdir()?.path());
        prints(&output, &format!("{NOT_LOADED}; "))?;
        let ways_out = "remove these files to download them again: the decoder panicked: ";
        prints(&output, ways_out)
    }
}
