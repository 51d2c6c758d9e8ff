//! Where the images come from: the order of the sources, and what the user sees when one of them fails.
//!
//! Environment variables decide, so every case runs in a process of its own: this binary again, as a child that
//! loads a dataset and prints what came of it. The Hub is a small HTTP server on this machine.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output};

use dataset::{Data, Options};
use libtest_mimic::{Arguments, Failed, Trial};

/// Set in the child; its value is what `--data` says.
const CHILD: &str = "DATASET_TEST_CHILD";

type Test = (&'static str, fn() -> Result<(), Failed>);

fn main() {
    if let Ok(data) = std::env::var(CHILD) {
        return child(&data);
    }
    let mut tests: Vec<Test> = vec![
        ("a_named_folder_is_used", named),
        ("a_named_folder_is_never_passed_over", never_passed_over),
        ("a_package_of_the_system_is_used_before_the_hub", packaged),
        ("data_and_the_variable_may_say_synthetic", synthetic),
        ("a_foreign_file_is_used_with_a_warning", foreign_file),
    ];
    #[cfg(feature = "hub")]
    tests.extend(hub::TESTS);
    #[cfg(not(feature = "hub"))]
    tests.push(("without_the_feature_hub_the_images_are_synthetic", || {
        let expected =
            "synthetic images in place of fashion-mnist (built without the feature `hub`";
        prints(&run("", &[("FASHION_MNIST_DIR", "")]), expected)
    }));
    let trials = tests.into_iter();
    #[allow(unused_mut)] // without the Hub
    let mut trials: Vec<Trial> = trials.map(|(name, test)| Trial::test(name, test)).collect();
    #[cfg(feature = "hub")]
    trials.push(hub::slow_trial());
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}

/// Loads Fashion-MNIST and prints its source, its sizes and two of its bytes, or the error.
fn child(data: &str) {
    let options = Options {
        data: (!data.is_empty()).then(|| Data::from(data)),
        // The synthetic set is there for its source only; a small one will do.
        limit_train: std::env::var("LIMIT").ok().map(|n| n.parse().unwrap()),
        limit_test: Some(200),
        ..Options::default()
    };
    match dataset::load(&options) {
        Ok(data) => {
            let (train, test) = (&data.train, &data.test);
            println!("{}; {} + {}", data.source, train.len(), test.len());
            let last = train.len() - 1;
            let (label, byte) = (train.label(last), train.image(last)[3]);
            println!("last: label {label}, byte {byte}");
        }
        Err(error) => println!("error: {error:#} (named: {})", options.names_a_source()),
    }
}

fn run(data: &str, variables: &[(&str, &str)]) -> Output {
    child_with(data, variables).output().unwrap()
}

/// The child with this `--data` and these variables, and with none of those that happen to be set here.
fn child_with(data: &str, variables: &[(&str, &str)]) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let datasets = ["FASHION_MNIST_DIR", "MNIST_DIR"];
    let of_the_hub = ["HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"];
    for unset in [datasets, of_the_hub, ["HTTP_PROXY", "http_proxy"]].concat() {
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
fn prints(output: &Output, says: &str) -> Result<(), Failed> {
    warns(output, says, "")
}

/// Checks that stdout contains `says`, and that stderr is nothing, or contains `warns`.
fn warns(output: &Output, says: &str, warns: &str) -> Result<(), Failed> {
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    let said = stdout.contains(says);
    check(
        said,
        format!("stdout does not say {says:?}:\n{stdout}\nstderr:\n{stderr}"),
    )?;
    let warned = warns.is_empty() == stderr.is_empty() && stderr.contains(warns);
    check(warned, format!("stderr should say {warns:?}:\n{stderr}"))
}

fn check(holds: bool, otherwise: String) -> Result<(), Failed> {
    if holds { Ok(()) } else { Err(otherwise.into()) }
}

/// Four raw IDX files: 12 training images and labels, and one test image.
fn write_folder(dir: &Path) {
    for (part, n) in [("train", 12), ("t10k", 1)] {
        let images = [2051, n, 28, 28].into_iter().flat_map(u32::to_be_bytes);
        let images: Vec<u8> = images.chain((0..n * 784).map(|i| i as u8)).collect();
        std::fs::write(dir.join(format!("{part}-images-idx3-ubyte")), images).unwrap();
        let labels = [2049, n].into_iter().flat_map(u32::to_be_bytes);
        let labels: Vec<u8> = labels.chain((0..n).map(|i| (i % 10) as u8)).collect();
        std::fs::write(dir.join(format!("{part}-labels-idx1-ubyte")), labels).unwrap();
    }
}

fn named() -> Result<(), Failed> {
    let dir = tempfile::tempdir()?;
    write_folder(dir.path());
    let path = dir.path().to_str().unwrap();
    let says = format!("fashion-mnist from {path} (4 IDX files); 12 + 1\nlast: label 1, byte 179");
    prints(&run(path, &[]), &says)?;
    prints(&run("", &[("FASHION_MNIST_DIR", path)]), &says)
}

fn never_passed_over() -> Result<(), Failed> {
    let dir = tempfile::tempdir()?;
    let path = dir.path().to_str().unwrap();
    let lacks = format!("folder {path} lacks train-images-idx3-ubyte, ");
    let says = format!("error: cannot load fashion-mnist from {path}: {lacks}");
    prints(&run(path, &[]), &says)?;
    let output = run("", &[("FASHION_MNIST_DIR", path)]);
    prints(&output, &says)?;
    prints(&output, "(named: true)")
}

fn packaged() -> Result<(), Failed> {
    let share = tempfile::tempdir()?;
    let dir = share.path().join("datasets/fashion-mnist");
    std::fs::create_dir_all(&dir)?;
    write_folder(&dir);
    let dirs = format!("/no/such/folder:{}", share.path().display());
    let dirs = [("XDG_DATA_DIRS", dirs.as_str())];
    let says = format!("fashion-mnist from {} (4 IDX files); 12 + 1", dir.display());
    prints(&run("", &dirs), &says)?;
    // what was named comes first
    prints(&run("synthetic", &dirs), "fashion-mnist (asked for)")
}

fn synthetic() -> Result<(), Failed> {
    let says = "synthetic images in place of fashion-mnist (asked for); 100 + 200";
    prints(&run("", &[("FASHION_MNIST_DIR", "synthetic")]), says)?;
    // `--data` goes before the variable
    prints(&run("synthetic", &[("FASHION_MNIST_DIR", "nowhere")]), says)
}

fn foreign_file() -> Result<(), Failed> {
    let dir = tempfile::tempdir()?;
    write_folder(dir.path());
    let raw = dir.path().join("train-labels-idx1-ubyte");
    let gz = std::fs::File::create(dir.path().join("train-labels-idx1-ubyte.gz"))?;
    let mut gz = flate2::write::GzEncoder::new(gz, flate2::Compression::fast());
    gz.write_all(&std::fs::read(&raw)?)?;
    gz.finish()?;
    std::fs::remove_file(raw)?;
    let published = "; the published file has 25c81989df183df01b3e8a0aad5dffbe";
    let output = run(dir.path().to_str().unwrap(), &[]);
    warns(&output, "(4 IDX files); 12 + 1", published)?;
    warns(&output, "", "train-labels-idx1-ubyte.gz has the MD5 sum ")
}

/// A Hub on this machine: what it answers, and what becomes of it.
#[cfg(feature = "hub")]
mod hub {
    use std::collections::BTreeMap;
    use std::io::{BufRead, BufReader, Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::path::PathBuf;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;
    use std::thread;
    use std::time::{Duration, Instant};

    use sha2::Digest;
    use tempfile::tempdir;

    use super::*;

    pub const TESTS: &[Test] = &[
        ("a_refused_connection_means_synthetic_images", refused),
        ("a_hub_that_never_answers_is_given_up", never_answers),
        ("a_hub_that_hangs_up_means_synthetic_images", hangs_up),
        ("an_answer_500_is_an_error_with_the_ways_out", answers_500),
        ("a_download_is_decoded_and_cached", downloads),
        ("a_redirect_leads_to_the_file", redirects),
        ("a_broken_off_download_is_an_error", breaks_off),
        ("a_download_cut_by_a_proxy_is_an_error", cut_short),
        ("other_bytes_than_the_hub_says_are_an_error", other_bytes),
        ("a_file_damaged_in_the_cache_is_an_error", damaged_later),
        ("a_killed_download_is_not_taken_for_a_file", killed),
        ("two_processes_download_once", two_at_once),
        ("a_hash_cannot_lead_out_of_the_cache", hostile_hash),
        #[cfg(unix)]
        ("a_link_in_the_cache_cannot_lead_out_of_it", led_astray),
        ("a_broken_image_is_an_error_without_a_panic", broken_image),
        ("a_broken_endpoint_is_an_error", broken_endpoint),
    ];

    pub fn slow_trial() -> Trial {
        let name = "a_download_that_stands_still_is_given_up";
        let trial = Trial::test(name, stands_still).with_kind("takes a minute");
        trial.with_ignored_flag(true)
    }

    const LOADED: &str = "fashion-mnist from the Hugging Face Hub; 100 + 200";
    const NOT_LOADED: &str = "error: cannot load fashion-mnist from the Hugging Face Hub";
    const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

    /// The dataset's folder in the cache of this `HF_HOME`.
    fn cache(home: &Path) -> PathBuf {
        home.join("hub/datasets--zalando-datasets--fashion_mnist")
    }

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
        let mut words = head.first().into_iter().flat_map(|line| line.split(' '));
        let mut word = || words.next().unwrap_or_default().to_owned();
        (word(), word())
    }

    /// An answer; `headers` end in line breaks.
    fn answer(status: &str, headers: &str, body: &[u8]) -> Vec<u8> {
        let head = format!("HTTP/1.1 {status}\r\n{headers}Connection: close\r\n\r\n");
        [head.as_bytes(), body].concat()
    }

    /// What a mirror of the Hub answers for a file of these bytes, of which `keep` come.
    fn file(method: &str, bytes: &[u8], keep: f64) -> Vec<u8> {
        let (n, sum) = (bytes.len(), sum(bytes));
        let keep = if method == "HEAD" { 0.0 } else { keep };
        let says = format!("Content-Length: {n}\r\nETag: \"{sum}\"\r\nX-Repo-Commit: {COMMIT}\r\n");
        answer("200 OK", &says, &bytes[..(n as f64 * keep) as usize])
    }

    /// The training or the test file: 60,000 or 10,000 images, of which ten differ. Pixel i of image k is
    /// i · (k mod 10 + 1) mod 256, and its label k mod 10.
    fn parquet(path: &str) -> Vec<u8> {
        let packed = match path.contains("/train/") {
            true => include_bytes!("data/train.parquet.gz").as_slice(),
            false => include_bytes!("data/test.parquet.gz").as_slice(),
        };
        let mut bytes = Vec::new();
        let mut unpacked = flate2::read::GzDecoder::new(packed);
        unpacked.read_to_end(&mut bytes).unwrap();
        bytes
    }

    /// The SHA-256 as it is written.
    fn sum(bytes: &[u8]) -> String {
        let sum = sha2::Sha256::digest(bytes);
        sum.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// A Hub that is well.
    fn good() -> String {
        hub(|method, path| file(method, &parquet(path), 1.0))
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

    fn refused() -> Result<(), Failed> {
        let says = "synthetic images in place of fashion-mnist (the Hugging Face Hub cannot be reached: Connection refused";
        prints(&load(&closed(), tempdir()?.path()), says)
    }

    fn never_answers() -> Result<(), Failed> {
        let silent = serve(|stream| {
            thread::sleep(Duration::from_secs(60));
            drop(stream);
        });
        given_up(
            &silent,
            "(the Hugging Face Hub gave no answer within 5 s)",
            8,
        )
    }

    /// What is said of a Hub that does not go on, after so many seconds at most.
    fn given_up(hub: &str, says: &str, seconds: u64) -> Result<(), Failed> {
        let start = Instant::now();
        prints(&load(hub, tempdir()?.path()), says)?;
        let took = start.elapsed();
        let in_time = took < Duration::from_secs(seconds);
        check(
            in_time,
            format!("it took {took:?}; expected less than {seconds} s"),
        )
    }

    fn hangs_up() -> Result<(), Failed> {
        let output = load(&serve(drop), tempdir()?.path());
        prints(&output, "(the Hugging Face Hub cannot be reached: ")
    }

    fn broken_endpoint() -> Result<(), Failed> {
        prints(&load("no address", tempdir()?.path()), NOT_LOADED)
    }

    fn answers_500() -> Result<(), Failed> {
        let broken = hub(|_, _| answer("500 Oh no", "Content-Length: 0\r\n", &[]));
        let output = load(&broken, tempdir()?.path());
        prints(&output, NOT_LOADED)?;
        let ways_out = "name a folder with the four IDX files (FASHION_MNIST_DIR), or use the synthetic images";
        prints(&output, ways_out)?;
        prints(&output, "500")?;
        prints(&output, "(named: false)")
    }

    /// Refused by a Hub that does not send what it says, without a trace: then a good one is asked.
    fn refused_and_forgotten(bad: &str, says: &str) -> Result<(), Failed> {
        let home = tempdir()?;
        let output = load(bad, home.path());
        let file = "cannot download fashion_mnist/train/0000.parquet: ";
        prints(&output, file)?;
        prints(&output, says)?;
        prints(&load(&closed(), home.path()), "synthetic images")?;
        prints(&load(&good(), home.path()), LOADED)
    }

    fn downloads() -> Result<(), Failed> {
        downloads_from(&good())
    }

    fn redirects() -> Result<(), Failed> {
        downloads_from(&redirecting(|_| {}))
    }

    fn downloads_from(hub: &str) -> Result<(), Failed> {
        let home = tempdir()?;
        let load = |hub| from(hub, home.path()).env("LIMIT", "60000").output();
        let last = "the Hugging Face Hub; 60000 + 200\nlast: label 9, byte 30";
        prints(&load(hub)?, &format!("fashion-mnist from {last}"))?;
        let cached = format!("fashion-mnist from an earlier download from {last}");
        prints(&load(&closed())?, &cached)?;
        let repo = cache(home.path());
        let files = tree(&repo);
        let files = files.keys().map(|path| path.strip_prefix(&repo).unwrap());
        let files: Vec<&Path> = files.collect();
        let folders = [
            "blobs",
            "blobs",
            "refs/refs/convert/parquet",
            "snapshots",
            "snapshots",
        ];
        let mut pairs = files.iter().zip(folders);
        let there = files.len() == 5 && pairs.all(|(file, folder)| file.starts_with(folder));
        check(there, format!("in the cache are {files:?}"))
    }

    fn breaks_off() -> Result<(), Failed> {
        let half = hub(|method, path| file(method, &parquet(path), 0.5));
        refused_and_forgotten(&half, "end of file before message length reached")
    }

    fn cut_short() -> Result<(), Failed> {
        let cut = redirecting(|bytes| bytes.truncate(1000));
        refused_and_forgotten(&cut, "received 1000 bytes; expected ")?;
        let long = redirecting(|bytes| bytes.extend([0; 1000]));
        refused_and_forgotten(&long, " bytes or more; expected ")
    }

    fn other_bytes() -> Result<(), Failed> {
        let other = redirecting(|bytes| {
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
        });
        refused_and_forgotten(&other, "; expected ")
    }

    fn damaged_later() -> Result<(), Failed> {
        let home = tempdir()?;
        prints(&load(&good(), home.path()), LOADED)?;
        for blob in std::fs::read_dir(cache(home.path()).join("blobs"))? {
            let path = blob?.path();
            let mut bytes = std::fs::read(&path)?;
            bytes[100] ^= 4;
            std::fs::write(path, bytes)?;
        }
        let output = load(&closed(), home.path());
        prints(&output, "train/0000.parquet is damaged: ")?;
        prints(&output, "remove these files to download them again")
    }

    /// A Hub that sends half of a file, says so, and then nothing.
    fn half() -> (String, mpsc::Receiver<()>) {
        let (half, sent) = mpsc::channel();
        let hub = serve(move |mut stream| {
            let (method, path) = request(&stream);
            let _ = stream.write_all(&file(&method, &parquet(&path), 0.5));
            if method == "GET" {
                half.send(()).unwrap();
                thread::sleep(Duration::from_secs(120));
            }
        });
        (hub, sent)
    }

    fn stands_still() -> Result<(), Failed> {
        let (hub, _sent) = half();
        given_up(&hub, "timed out", 90)
    }

    fn killed() -> Result<(), Failed> {
        let (home, (hub, sent)) = (tempdir()?, half());
        let mut child = from(&hub, home.path()).spawn()?;
        sent.recv_timeout(Duration::from_secs(30))?;
        thread::sleep(Duration::from_millis(300)); // it writes what came
        child.kill()?;
        child.wait()?;
        prints(&load(&closed(), home.path()), "synthetic images")?;
        prints(&load(&good(), home.path()), LOADED)
    }

    fn two_at_once() -> Result<(), Failed> {
        let home = tempdir()?;
        let gets = Arc::new(AtomicUsize::new(0));
        let counter = gets.clone();
        let hub = hub(move |method, path| {
            if method == "GET" {
                counter.fetch_add(1, Ordering::Relaxed);
                thread::sleep(Duration::from_secs(1));
            }
            file(method, &parquet(path), 1.0)
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
        check(n == 2, format!("{n} downloads of two files"))
    }

    /// All files below a folder, with what they hold; of a link, where it leads.
    fn tree(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
        let mut files = BTreeMap::new();
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if let Ok(target) = std::fs::read_link(&path) {
                files.insert(path, target.into_os_string().into_encoded_bytes());
            } else if path.is_dir() {
                files.extend(tree(&path));
            } else {
                let bytes = std::fs::read(&path).unwrap();
                files.insert(path, bytes);
            }
        }
        files
    }

    /// A Hub that gives a hostile hash and a hostile commit from its n-th answer on, wherever in the program's talk with
    /// it that is: nothing outside of the cache is made, changed or removed.
    fn hostile_hash() -> Result<(), Failed> {
        for n in 0..4 {
            hostile_from(n, ["../../../../precious", COMMIT])?;
            hostile_from(n, ["", "../../../../escaped"])?;
        }
        Ok(())
    }

    /// An empty hash is the right one.
    fn hostile_from(n: usize, [hash, commit]: [&'static str; 2]) -> Result<(), Failed> {
        let folder = tempdir()?;
        let home = folder.path().join("home");
        std::fs::create_dir_all(home.join("hub"))?;
        // as far up as a hash and a commit lead: beside the cache, and beside the home
        for path in ["precious", "home/precious", "home/hub/precious"] {
            std::fs::write(folder.path().join(path), "a precious file")?;
        }
        let before = tree(folder.path());
        let answers = AtomicUsize::new(0);
        let hub = hub(move |method, path| {
            let bytes = parquet(path);
            let good = file(method, &bytes, 1.0);
            if answers.fetch_add(1, Ordering::Relaxed) < n {
                return good;
            }
            let sum = sum(&bytes);
            let hash = if hash.is_empty() { &sum } else { hash };
            let end = good.windows(4).position(|four| four == b"\r\n\r\n");
            let (head, body) = good.split_at(end.unwrap());
            let head = String::from_utf8_lossy(head);
            let head = head.replace(&sum, hash).replace(COMMIT, commit);
            [head.as_bytes(), body].concat()
        });
        let output = load(&hub, &home);
        let says = String::from_utf8_lossy(&output.stdout);
        let refused =
            says.contains("sent the hash \"../../../../") && says.contains("hexadecimal digits");
        let either = refused || says.starts_with(LOADED);
        check(either, format!("hostile from answer {n}: {says}"))?;
        let mut after = tree(folder.path());
        let ours = [cache(&home), home.join("hub/.locks")];
        after.retain(|path, _| !ours.iter().any(|ours| path.starts_with(ours)));
        let files = after.keys();
        check(
            after == before,
            format!("hostile from answer {n}: {files:?}"),
        )
    }

    /// What is in the cache in place of a file, and leads elsewhere or cannot be compared, is neither read nor removed.
    #[cfg(unix)]
    fn led_astray() -> Result<(), Failed> {
        let folder = tempdir()?;
        let home = folder.path().join("home");
        prints(&load(&good(), &home), LOADED)?;
        let (repo, file) = (cache(&home), "fashion_mnist/train/0000.parquet");
        let pointer = repo.join("snapshots").join(COMMIT).join(file);
        let outside = folder.path().join(sum(&parquet("/train/")));
        let inside = repo.join("blobs/no-sum");
        let unnamed = ", a file not named by its SHA-256";
        for (target, says) in [(&outside, " links to "), (&inside, unnamed)] {
            std::fs::write(target, parquet("/train/"))?;
            std::fs::remove_file(&pointer)?;
            std::os::unix::fs::symlink(target, &pointer)?;
            let output = load(&good(), &home);
            prints(&output, says)?;
            prints(&output, &format!(": remove {}", pointer.display()))?;
            let same = std::fs::read(target)? == parquet("/train/");
            check(same, "it was changed".into())?;
        }
        // a commit that an earlier version took as it came
        let elsewhere = folder.path().join(file);
        std::fs::create_dir_all(elsewhere.parent().unwrap())?;
        std::fs::write(&elsewhere, "a precious file")?;
        std::fs::write(repo.join("refs/refs/convert/parquet"), "../../../..")?;
        prints(&load(&good(), &home), LOADED)?;
        let same = std::fs::read(elsewhere)? == b"a precious file";
        check(same, "it was changed".into())
    }

    fn broken_image() -> Result<(), Failed> {
        let hub = hub(|method, path| {
            let mut bytes = parquet(path);
            let png = bytes.windows(4).position(|four| four == b"\x89PNG");
            bytes[png.unwrap()..][..4].fill(0);
            file(method, &bytes, 1.0)
        });
        let output = load(&hub, tempdir()?.path());
        prints(&output, &format!("{NOT_LOADED}; "))?;
        let ways_out = "remove these files to download them again: the decoder panicked: ";
        prints(&output, ways_out)
    }
}
