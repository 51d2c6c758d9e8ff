//! Where the images come from: the order of the sources, and what the user sees when one of them fails.
//!
//! Environment variables decide, so every case runs in a process of its own: this binary again, as a child that
//! loads a dataset and prints what came of it. The Hub is a small HTTP server on this machine.

use std::path::Path;
use std::process::{Command, Output};

use dataset::{Data, Options};
use libtest_mimic::{Arguments, Failed, Trial};

/// Set in the child; its value is what `--data` says.
const CHILD: &str = "DATASET_TEST_CHILD";

fn main() {
    if let Ok(data) = std::env::var(CHILD) {
        return child(&data);
    }
    let mut trials = vec![
        trial("a_named_folder_is_used", a_named_folder_is_used),
        trial(
            "a_named_folder_is_never_passed_over",
            a_named_folder_is_never_passed_over,
        ),
        trial(
            "a_package_of_the_system_is_used_before_the_hub",
            a_package_of_the_system_is_used_before_the_hub,
        ),
        trial(
            "the_variable_may_say_synthetic",
            the_variable_may_say_synthetic,
        ),
        trial(
            "data_goes_before_the_variable",
            data_goes_before_the_variable,
        ),
        trial(
            "a_foreign_file_is_used_with_a_warning",
            a_foreign_file_is_used_with_a_warning,
        ),
    ];
    #[cfg(feature = "hub")]
    trials.extend(hub::trials());
    #[cfg(not(feature = "hub"))]
    trials.push(trial(
        "without_the_feature_hub_the_images_are_synthetic",
        || {
            let expected =
                "synthetic images in place of fashion-mnist (built without the feature `hub`";
            expect(&run("", &[("FASHION_MNIST_DIR", "")]), expected, "")
        },
    ));
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}

fn trial(name: &str, test: fn() -> Result<(), Failed>) -> Trial {
    Trial::test(name, test)
}

/// Loads Fashion-MNIST and prints its source, its sizes and two of its bytes, or the error.
fn child(data: &str) {
    let data = (!data.is_empty()).then(|| Data::from(data));
    let named = Options {
        data,
        limit_test: Some(200),
        ..Options::default()
    };
    // The synthetic set is there for its source only; a small one will do.
    let options = Options {
        limit_train: std::env::var("LIMIT").ok().map(|n| n.parse().unwrap()),
        ..named
    };
    match dataset::load(&options) {
        Ok(data) => {
            let (train, test) = (&data.train, &data.test);
            let last = train.len() - 1;
            println!("{}; {} + {}", data.source, train.len(), test.len());
            println!(
                "last: label {}, byte {}",
                train.label(last),
                train.image(last)[3]
            );
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
    for unset in [
        "FASHION_MNIST_DIR",
        "MNIST_DIR",
        "HF_HUB_CACHE",
        "HUGGINGFACE_HUB_CACHE",
        "HTTP_PROXY",
        "http_proxy",
    ] {
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

/// Checks that stdout contains `says`, and that stderr is nothing, or contains `warns`.
fn expect(output: &Output, says: &str, warns: &str) -> Result<(), Failed> {
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    if !stdout.contains(says) {
        return Err(format!("stdout does not say {says:?}:\n{stdout}\nstderr:\n{stderr}").into());
    }
    if warns.is_empty() != stderr.is_empty() || !stderr.contains(warns) {
        return Err(format!("stderr should say {warns:?}:\n{stderr}").into());
    }
    Ok(())
}

/// Four raw IDX files: `n` training images and labels, and one test image.
fn write_folder(dir: &Path, n: u32) {
    for (part, n) in [("train", n), ("t10k", 1)] {
        let images = [2051, n, 28, 28].into_iter().flat_map(u32::to_be_bytes);
        let images: Vec<u8> = images.chain((0..n * 784).map(|i| i as u8)).collect();
        std::fs::write(dir.join(format!("{part}-images-idx3-ubyte")), images).unwrap();
        let labels = [2049, n].into_iter().flat_map(u32::to_be_bytes);
        let labels: Vec<u8> = labels.chain((0..n).map(|i| (i % 10) as u8)).collect();
        std::fs::write(dir.join(format!("{part}-labels-idx1-ubyte")), labels).unwrap();
    }
}

fn a_named_folder_is_used() -> Result<(), Failed> {
    let dir = tempfile::tempdir()?;
    write_folder(dir.path(), 12);
    let path = dir.path().to_str().unwrap();
    let says = format!("fashion-mnist from {path} (4 IDX files); 12 + 1\nlast: label 1, byte 179");
    expect(&run(path, &[]), &says, "")?;
    expect(&run("", &[("FASHION_MNIST_DIR", path)]), &says, "")
}

fn a_named_folder_is_never_passed_over() -> Result<(), Failed> {
    let dir = tempfile::tempdir()?;
    let path = dir.path().to_str().unwrap();
    let says = format!(
        "error: cannot load fashion-mnist from {path}: folder {path} lacks train-images-idx3-ubyte, "
    );
    expect(&run(path, &[]), &says, "")?;
    expect(&run("", &[("FASHION_MNIST_DIR", path)]), &says, "")?;
    expect(
        &run("", &[("FASHION_MNIST_DIR", path)]),
        "(named: true)",
        "",
    )
}

fn a_package_of_the_system_is_used_before_the_hub() -> Result<(), Failed> {
    let share = tempfile::tempdir()?;
    let dir = share.path().join("datasets/fashion-mnist");
    std::fs::create_dir_all(&dir)?;
    write_folder(&dir, 12);
    let dirs = format!("/no/such/folder:{}", share.path().display());
    let says = format!("fashion-mnist from {} (4 IDX files); 12 + 1", dir.display());
    expect(&run("", &[("XDG_DATA_DIRS", &dirs)]), &says, "")?;
    // what was named comes first
    let asked = "synthetic images in place of fashion-mnist (asked for)";
    expect(&run("synthetic", &[("XDG_DATA_DIRS", &dirs)]), asked, "")
}

fn the_variable_may_say_synthetic() -> Result<(), Failed> {
    let says = "synthetic images in place of fashion-mnist (asked for); 100 + 200";
    expect(&run("", &[("FASHION_MNIST_DIR", "synthetic")]), says, "")
}

fn data_goes_before_the_variable() -> Result<(), Failed> {
    let says = "synthetic images in place of fashion-mnist (asked for)";
    expect(
        &run("synthetic", &[("FASHION_MNIST_DIR", "nowhere")]),
        says,
        "",
    )
}

fn a_foreign_file_is_used_with_a_warning() -> Result<(), Failed> {
    use std::io::Write;
    let dir = tempfile::tempdir()?;
    write_folder(dir.path(), 12);
    let raw = dir.path().join("train-labels-idx1-ubyte");
    let gz = std::fs::File::create(dir.path().join("train-labels-idx1-ubyte.gz"))?;
    let mut gz = flate2::write::GzEncoder::new(gz, flate2::Compression::fast());
    gz.write_all(&std::fs::read(&raw)?)?;
    gz.finish()?;
    std::fs::remove_file(raw)?;
    let warns = "; the published file has 25c81989df183df01b3e8a0aad5dffbe";
    let output = run(dir.path().to_str().unwrap(), &[]);
    expect(&output, "(4 IDX files); 12 + 1", warns)?;
    expect(&output, "", "train-labels-idx1-ubyte.gz has the MD5 sum ")
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
    use std::time::{Duration, Instant};

    use sha2::Digest;

    use super::*;

    pub fn trials() -> Vec<Trial> {
        vec![
            trial("a_refused_connection_means_synthetic_images", refused),
            trial("a_hub_that_never_answers_is_given_up", never_answers),
            trial("a_hub_that_hangs_up_means_synthetic_images", hangs_up),
            trial("an_answer_500_is_an_error_with_the_ways_out", answers_500),
            trial("a_download_is_decoded_and_cached", downloads),
            trial("a_redirect_leads_to_the_file", redirects),
            trial("a_broken_off_download_is_an_error", breaks_off),
            trial("a_download_cut_by_a_proxy_is_an_error", cut_short),
            trial("other_bytes_than_the_hub_says_are_an_error", other_bytes),
            trial("a_file_damaged_in_the_cache_is_an_error", damaged_later),
            trial("a_killed_download_is_not_taken_for_a_file", killed),
            trial("two_processes_download_once", two_at_once),
            trial("a_hash_cannot_lead_out_of_the_cache", hostile_hash),
            #[cfg(unix)]
            trial("a_link_in_the_cache_cannot_lead_out_of_it", led_astray),
            trial("a_broken_image_is_an_error_without_a_panic", broken_image),
            trial("a_broken_endpoint_is_an_error", broken_endpoint),
            trial("an_empty_variable_counts_as_unset", empty_variable),
        ]
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
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let answer = answer.clone();
                std::thread::spawn(move || answer(stream.unwrap()));
            }
        });
        address
    }

    /// Loads with this endpoint and this `HF_HOME`.
    fn load_from(endpoint: &str, home: &Path) -> Output {
        run(
            "",
            &[
                ("HF_ENDPOINT", endpoint),
                ("HF_HOME", home.to_str().unwrap()),
                ("FASHION_MNIST_DIR", ""),
            ],
        )
    }

    fn refused() -> Result<(), Failed> {
        let home = tempfile::tempdir()?;
        let says = "synthetic images in place of fashion-mnist (the Hugging Face Hub cannot be reached: Connection refused";
        expect(&load_from(&closed(), home.path()), says, "")
    }

    fn empty_variable() -> Result<(), Failed> {
        let home = tempfile::tempdir()?;
        expect(&load_from(&closed(), home.path()), "cannot be reached", "")
    }

    fn never_answers() -> Result<(), Failed> {
        let home = tempfile::tempdir()?;
        let silent = serve(|stream| {
            std::thread::sleep(Duration::from_secs(60));
            drop(stream);
        });
        let start = Instant::now();
        let says = "(the Hugging Face Hub gave no answer within 5 s)";
        expect(&load_from(&silent, home.path()), says, "")?;
        let took = start.elapsed();
        if took > Duration::from_secs(8) {
            return Err(format!("it took {took:?}; expected little more than 5 s").into());
        }
        Ok(())
    }

    fn hangs_up() -> Result<(), Failed> {
        let home = tempfile::tempdir()?;
        expect(
            &load_from(&serve(drop), home.path()),
            "(the Hugging Face Hub cannot be reached: ",
            "",
        )
    }

    fn broken_endpoint() -> Result<(), Failed> {
        let home = tempfile::tempdir()?;
        expect(
            &load_from("no address", home.path()),
            "error: cannot load fashion-mnist from the Hugging Face Hub",
            "",
        )
    }

    fn answers_500() -> Result<(), Failed> {
        let home = tempfile::tempdir()?;
        let broken = serve(|stream| {
            respond(stream, |_, _| {
                b"HTTP/1.1 500 Oh no\r\nContent-Length: 0\r\n\r\n".to_vec()
            })
        });
        let output = load_from(&broken, home.path());
        expect(
            &output,
            "error: cannot load fashion-mnist from the Hugging Face Hub",
            "",
        )?;
        expect(
            &output,
            "name a folder with the four IDX files (FASHION_MNIST_DIR), or use the synthetic \
             images",
            "",
        )?;
        expect(&output, "500", "")?;
        expect(&output, "(named: false)", "")
    }

    /// Reads one request and gives the answer to its method and path.
    fn respond(mut stream: TcpStream, answer: impl Fn(&str, &str) -> Vec<u8>) {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let mut request = String::new();
        let _ = reader.read_line(&mut request);
        let mut line = String::from("-");
        while !line.trim().is_empty() {
            line.clear();
            let _ = reader.read_line(&mut line);
        }
        let mut words = request.split(' ');
        let (method, path) = (
            words.next().unwrap_or_default(),
            words.next().unwrap_or_default(),
        );
        let _ = stream.write_all(&answer(method, path));
    }

    /// The training or the test file: 60,000 or 10,000 images, of which ten differ. Pixel i of image k is
    /// i · (k mod 10 + 1) mod 256, and its label k mod 10.
    fn parquet(part: &str) -> Vec<u8> {
        let packed = match part {
            "train" => include_bytes!("data/train.parquet.gz").as_slice(),
            _ => include_bytes!("data/test.parquet.gz").as_slice(),
        };
        let mut bytes = Vec::new();
        flate2::read::GzDecoder::new(packed)
            .read_to_end(&mut bytes)
            .unwrap();
        bytes
    }

    /// Whether it is the training or the test file that is asked for.
    fn part(path: &str) -> &str {
        if path.contains("/train/") {
            "train"
        } else {
            "test"
        }
    }

    const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

    /// The head of an answer: a length, a hash.
    fn head(n: usize, hash: &str) -> String {
        format!(
            "HTTP/1.1 200 OK\r\nContent-Length: {n}\r\nETag: \"{hash}\"\r\nX-Repo-Commit: {COMMIT}\r\nConnection: close\r\n\r\n"
        )
    }

    /// The SHA-256 as it is written.
    fn sum(bytes: &[u8]) -> String {
        let sum = sha2::Sha256::digest(bytes);
        sum.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// What a mirror of the Hub answers for a file of these bytes, of which `keep` come.
    fn file(method: &str, bytes: &[u8], keep: f64) -> Vec<u8> {
        let hash = sum(bytes);
        let n = bytes.len();
        let body = match method {
            "HEAD" => &[],
            _ => &bytes[..(n as f64 * keep) as usize],
        };
        [head(n, &hash).as_bytes(), body].concat()
    }

    /// A Hub that is well.
    fn good() -> String {
        serve(|stream| {
            respond(stream, |method, path| {
                file(method, &parquet(part(path)), 1.0)
            })
        })
    }

    /// A Hub that says all there is to say on a redirect, as the real one does: to the store that sends the bytes, made
    /// other than they were by `spoil`.
    fn redirecting(spoil: fn(&mut Vec<u8>)) -> String {
        let store = serve(move |stream| {
            respond(stream, |method, path| {
                let mut bytes = parquet(part(path));
                spoil(&mut bytes);
                let n = bytes.len();
                let head = format!(
                    "HTTP/1.1 200 OK\r\nContent-Length: {n}\r\nETag: \"the store's\"\r\nConnection: close\r\n\r\n"
                );
                match method {
                    "HEAD" => head.into_bytes(),
                    _ => [head.as_bytes(), &bytes].concat(),
                }
            })
        });
        serve(move |stream| {
            respond(stream, |_, path| {
                // the old name of the dataset leads to the new one, of which the Hub speaks
                let Some(path) = path.strip_prefix("/moved") else {
                    return format!("HTTP/1.1 307 Moved\r\nLocation: /moved{path}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                        .into_bytes();
                };
                let bytes = parquet(part(path));
                let (n, sum) = (bytes.len(), sum(&bytes));
                format!(
                    "HTTP/1.1 302 Found\r\nLocation: {store}{path}\r\nX-Linked-Size: {n}\r\nX-Linked-ETag: \"{sum}\"\r\n\
                     ETag: \"a pointer's\"\r\nX-Repo-Commit: {COMMIT}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
                )
                .into_bytes()
            })
        })
    }

    /// Refused by a Hub that does not send what it says, without a trace: then a good one is asked.
    fn refused_and_forgotten(bad: &str, says: &str) -> Result<(), Failed> {
        let home = tempfile::tempdir()?;
        let output = load_from(bad, home.path());
        let file = "cannot download fashion_mnist/train/0000.parquet: ";
        expect(&output, file, "")?;
        expect(&output, says, "")?;
        expect(&load_from(&closed(), home.path()), "synthetic images", "")?;
        let whole = "fashion-mnist from the Hugging Face Hub; 100 + 200";
        expect(&load_from(&good(), home.path()), whole, "")
    }

    fn downloads() -> Result<(), Failed> {
        downloads_from(&good())
    }

    fn redirects() -> Result<(), Failed> {
        downloads_from(&redirecting(|_| {}))
    }

    fn downloads_from(hub: &str) -> Result<(), Failed> {
        let home = tempfile::tempdir()?;
        let load = |endpoint: &str| {
            let variables = [
                ("HF_ENDPOINT", endpoint),
                ("HF_HOME", home.path().to_str().unwrap()),
                ("LIMIT", "60000"),
            ];
            run("", &variables)
        };
        let last = "60000 + 200\nlast: label 9, byte 30";
        expect(
            &load(hub),
            &format!("fashion-mnist from the Hugging Face Hub; {last}"),
            "",
        )?;
        let cached =
            format!("fashion-mnist from an earlier download from the Hugging Face Hub; {last}");
        expect(&load(&closed()), &cached, "")?;
        let repo = home
            .path()
            .join("hub/datasets--zalando-datasets--fashion_mnist");
        let files = tree(&repo);
        let files: Vec<&Path> = files
            .keys()
            .map(|path| path.strip_prefix(&repo).unwrap())
            .collect();
        match files[..] {
            [a, b, revision, c, d]
                if [a, b].iter().all(|path| path.starts_with("blobs"))
                    && revision == Path::new("refs/refs/convert/parquet")
                    && [c, d].iter().all(|path| path.starts_with("snapshots")) =>
            {
                Ok(())
            }
            _ => Err(format!("in the cache are {files:?}").into()),
        }
    }

    fn breaks_off() -> Result<(), Failed> {
        let hub = serve(|stream| {
            respond(stream, |method, path| {
                file(method, &parquet(part(path)), 0.5)
            })
        });
        refused_and_forgotten(&hub, "end of file before message length reached")
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
        let home = tempfile::tempdir()?;
        expect(
            &load_from(&good(), home.path()),
            "the Hugging Face Hub; ",
            "",
        )?;
        let repo = "hub/datasets--zalando-datasets--fashion_mnist";
        for blob in std::fs::read_dir(home.path().join(repo).join("blobs"))? {
            let path = blob?.path();
            let mut bytes = std::fs::read(&path)?;
            bytes[100] ^= 4;
            std::fs::write(path, bytes)?;
        }
        let output = load_from(&closed(), home.path());
        expect(&output, "train/0000.parquet is damaged: ", "")?;
        expect(&output, "remove these files to download them again", "")
    }

    fn killed() -> Result<(), Failed> {
        let home = tempfile::tempdir()?;
        let (half, sent) = std::sync::mpsc::channel();
        let hub = serve(move |stream| {
            let open = stream.try_clone().unwrap();
            respond(stream, |method, path| {
                if method == "GET" {
                    half.send(()).unwrap();
                }
                file(method, &parquet(part(path)), 0.5)
            });
            std::thread::sleep(Duration::from_secs(60));
            drop(open);
        });
        let variables = [
            ("HF_ENDPOINT", hub.as_str()),
            ("HF_HOME", home.path().to_str().unwrap()),
        ];
        let mut child = child_with("", &variables).spawn()?;
        sent.recv_timeout(Duration::from_secs(30))?;
        std::thread::sleep(Duration::from_millis(300)); // it writes what came
        child.kill()?;
        child.wait()?;
        expect(&load_from(&closed(), home.path()), "synthetic images", "")?;
        let whole = "fashion-mnist from the Hugging Face Hub; 100 + 200";
        expect(&load_from(&good(), home.path()), whole, "")
    }

    fn two_at_once() -> Result<(), Failed> {
        let home = tempfile::tempdir()?;
        let gets = Arc::new(AtomicUsize::new(0));
        let counter = gets.clone();
        let hub = serve(move |stream| {
            respond(stream, |method, path| {
                if method == "GET" {
                    counter.fetch_add(1, Ordering::Relaxed);
                    std::thread::sleep(Duration::from_secs(1));
                }
                file(method, &parquet(part(path)), 1.0)
            })
        });
        let variables = [
            ("HF_ENDPOINT", hub.as_str()),
            ("HF_HOME", home.path().to_str().unwrap()),
        ];
        let mut second = child_with("", &variables);
        let second = std::thread::spawn(move || second.output().unwrap());
        let outputs = [run("", &variables), second.join().expect("no panic")];
        let waits = |output: &Output| !output.stderr.is_empty();
        if outputs.iter().filter(|output| waits(output)).count() != 1 {
            return Err("one of two should say that it waits".into());
        }
        for output in &outputs {
            let says = if waits(output) {
                "another process is downloading fashion-mnist"
            } else {
                ""
            };
            expect(output, "the Hugging Face Hub; 100 + 200", says)?;
        }
        match gets.load(Ordering::Relaxed) {
            2 => Ok(()),
            n => Err(format!("{n} downloads of two files").into()),
        }
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
        let folder = tempfile::tempdir()?;
        let home = folder.path().join("home");
        // as far up as a hash and a commit lead: beside the cache, and beside the home
        for path in ["precious", "home/precious", "home/hub/precious"] {
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap())?;
            std::fs::write(path, "a precious file")?;
        }
        let before = tree(folder.path());
        let answers = AtomicUsize::new(0);
        let hub = serve(move |stream| {
            respond(stream, |method, path| {
                let good = file(method, &parquet(part(path)), 1.0);
                if answers.fetch_add(1, Ordering::Relaxed) < n {
                    return good;
                }
                let sum = sum(&parquet(part(path)));
                let hash = if hash.is_empty() { &sum } else { hash };
                let end = good
                    .windows(4)
                    .position(|four| four == b"\r\n\r\n")
                    .unwrap();
                let head = String::from_utf8_lossy(&good[..end]);
                let head = head.replace(&sum, hash).replace(COMMIT, commit);
                [head.as_bytes(), &good[end..]].concat()
            })
        });
        let output = load_from(&hub, &home);
        let says = String::from_utf8_lossy(&output.stdout);
        let refused =
            says.contains("sent the hash \"../../../../") && says.contains("hexadecimal digits");
        if !refused && !says.starts_with("fashion-mnist from the Hugging Face Hub; 100 + 200") {
            return Err(format!("hostile from answer {n}: {says}").into());
        }
        let mut after = tree(folder.path());
        let cache = home.join("hub");
        let ours = ["datasets--zalando-datasets--fashion_mnist", ".locks"];
        after.retain(|path, _| !ours.iter().any(|ours| path.starts_with(cache.join(ours))));
        match after == before {
            true => Ok(()),
            false => Err(format!("hostile from answer {n}: {:?}", after.keys()).into()),
        }
    }

    /// What is in the cache in place of a file, and leads elsewhere or cannot be compared, is neither read nor removed.
    #[cfg(unix)]
    fn led_astray() -> Result<(), Failed> {
        let folder = tempfile::tempdir()?;
        let home = folder.path().join("home");
        expect(&load_from(&good(), &home), "the Hugging Face Hub; ", "")?;
        let repo = home.join("hub/datasets--zalando-datasets--fashion_mnist");
        let pointer = repo.join(format!(
            "snapshots/{COMMIT}/fashion_mnist/train/0000.parquet"
        ));
        let outside = folder.path().join(sum(&parquet("train")));
        let inside = repo.join("blobs/no-sum");
        for (target, says) in [
            (&outside, " links to "),
            (&inside, ", a file not named by its SHA-256"),
        ] {
            std::fs::write(target, parquet("train"))?;
            std::fs::remove_file(&pointer)?;
            std::os::unix::fs::symlink(target, &pointer)?;
            let output = load_from(&good(), &home);
            expect(&output, says, "")?;
            expect(&output, &format!(": remove {}", pointer.display()), "")?;
            if std::fs::read(target)? != parquet("train") {
                return Err("it was changed".into());
            }
        }
        // a commit that an earlier version took as it came
        let elsewhere = folder.path().join("fashion_mnist/train/0000.parquet");
        std::fs::create_dir_all(elsewhere.parent().unwrap())?;
        std::fs::write(&elsewhere, "a precious file")?;
        std::fs::write(repo.join("refs/refs/convert/parquet"), "../../../..")?;
        expect(&load_from(&good(), &home), "the Hugging Face Hub; ", "")?;
        match std::fs::read(elsewhere)? == b"a precious file" {
            true => Ok(()),
            false => Err("it was changed".into()),
        }
    }

    fn broken_image() -> Result<(), Failed> {
        let home = tempfile::tempdir()?;
        let spoil = |mut bytes: Vec<u8>| {
            let png = bytes
                .windows(4)
                .position(|four| four == b"\x89PNG")
                .unwrap();
            bytes[png..png + 4].fill(0);
            bytes
        };
        let hub = serve(move |stream| {
            respond(stream, |method, path| {
                file(method, &spoil(parquet(part(path))), 1.0)
            })
        });
        let output = load_from(&hub, home.path());
        expect(
            &output,
            "error: cannot load fashion-mnist from the Hugging Face Hub; ",
            "",
        )?;
        expect(
            &output,
            "remove these files to download them again: the decoder panicked: ",
            "",
        )
    }
}
