//! Two hosts train together over a network, and one misses the other. The
//! hosts are network namespaces of this machine with a cable between them; root can make them.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;

use crate::kit::{ended, has, root, signal, succeeds, until_there, until_two_checkpoints};
use crate::several_processes::{LONG, SMALL, all_are_gone, as_program, children, same_runs};
use crate::several_processes::{trains, until_they_train};

pub fn trials() -> Vec<Trial> {
    listed!(
        Hosts::new().is_ok(),
        "root and network namespaces",
        they_take_the_steps_of_one,
        they_send_the_bytes_that_are_predicted,
        they_miss_a_host_that_is_cut_off,
        one_goes_on_without_the_other,
        the_script_ends_in_order,
    )
}

/// Two network namespaces, 10.77.0.1 and 10.77.0.2, and what stands for ssh between them.
struct Hosts {
    names: [String; 2],
    folder: tempfile::TempDir,
}

impl Hosts {
    fn new() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let unique = folder.path().file_name().context("no name")?;
        let unique = unique.to_string_lossy();
        let unique = unique.trim_start_matches('.'); // no name of a host begins so
        let names = ["a", "b"].map(|host| format!("{unique}{host}"));
        let hosts = Self { names, folder };
        let [a, b] = &hosts.names;
        ip(&format!("netns add {a}"))?;
        ip(&format!("netns add {b}"))?;
        ip(&format!(
            "-n {a} link add cable type veth peer name cable netns {b}"
        ))?;
        for (i, host) in hosts.names.iter().enumerate() {
            ip(&format!(
                "-n {host} addr add 10.77.0.{}/24 dev cable",
                i + 1
            ))?;
            ip(&format!("-n {host} link set cable up"))?;
            ip(&format!("-n {host} link set lo up"))?;
        }
        fs::write(hosts.ssh(), format!("#!/bin/sh\nA={a} B={b}\n{SSH}"))?;
        let executable = Command::new("chmod").arg("+x").arg(hosts.ssh()).status()?;
        ensure!(executable.success());
        Ok(hosts)
    }

    fn ssh(&self) -> PathBuf {
        self.folder.path().join("ssh")
    }

    /// `mpirun` on the first host, for so many processes on each.
    fn mpirun(&self, each: usize, args: &str) -> Result<Command> {
        let mut command = self.on_the_first("mpirun");
        let options = format!(
            "--timeout 100 -H 10.77.0.1:{each},10.77.0.2:{each} -n {} --bind-to none --mca oob_tcp_keepalive_time 5 \
             --mca oob_tcp_keepalive_intvl 2 --mca oob_tcp_keepalive_probes 3",
            2 * each
        );
        command
            .args(options.split_whitespace())
            .args(as_program(args)?);
        Ok(command)
    }

    /// The bytes that the second host has sent so far.
    fn sent(&self) -> Result<f64> {
        let counter = "/sys/class/net/cable/statistics/tx_bytes";
        let mut command = Command::new("ip");
        let output = command
            .args(["netns", "exec", &self.names[1], "cat", counter])
            .output()?;
        ensure!(output.status.success());
        Ok(String::from_utf8(output.stdout)?.trim().parse()?)
    }

    /// A command on the first host, with the settings of Open MPI for both.
    fn on_the_first(&self, program: &str) -> Command {
        let ([a, _], net) = (&self.names, "10.77.0.0/24");
        let path = std::env::var("PATH").unwrap_or_default();
        let mut command = Command::new("ip");
        command
            .args(["netns", "exec", a, "unshare", "-u", "sh", "-c"])
            .args([&format!("hostname {a}; exec \"$@\""), "sh", program])
            .env("PATH", format!("{}:{path}", self.folder.path().display()))
            .env("OMPI_MCA_plm_rsh_agent", "ssh")
            .env("OMPI_MCA_pml", "ob1")
            .env("OMPI_MCA_btl", "self,tcp")
            .env("OMPI_MCA_btl_tcp_if_include", net)
            .env("OMPI_MCA_oob_tcp_if_include", net)
            .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
            .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
        command
    }
}

/// Enters the host that it is given, under the host's own name, and runs the command there.
const SSH: &str = r#"
while case "$1" in -*) true;; *) false;; esac; do shift; done
case $1 in 10.77.0.1) host=$A;; *) host=$B; ip -n $A link show cable | grep -q LOWER_UP || exit 255;; esac
shift
exec ip netns exec $host unshare -u sh -c "hostname $host; exec sh -c \"\$*\"" sh "$@"
"#;

impl Drop for Hosts {
    fn drop(&mut self) {
        for host in &self.names {
            let _ = ip(&format!("netns del {host}")); // with the cable
        }
    }
}

fn ip(args: &str) -> Result<()> {
    let output = Command::new("ip").args(args.split_whitespace()).output()?;
    let why = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "ip {args}: {why}");
    Ok(())
}

fn they_take_the_steps_of_one() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let out = |name: &str| folder.path().join(name);
    let here = format!("{SMALL} --gpus 4 --out {}", out("here").display());
    succeeds("concise", &here)?;
    let hosts = Hosts::new()?;
    let there = format!(
        "concise {SMALL} --backend mpi --out {}",
        out("there").display()
    );
    let (status, _, stderr) = ended(hosts.mpirun(2, &there)?.output()?)?;
    ensure!(status == 0, "status {status}\n{stderr}");
    same_runs(&out("here"), &out("there"))
}

/// With a process on each host, beside the vectors of [`SumOrder`](data_parallel::collective::SumOrder): for each, a process
/// sends one half of the parameters to the other, and then its half of the sum.
fn they_send_the_bytes_that_are_predicted() -> Result<()> {
    let hosts = Hosts::new()?;
    let sent = |program: &str, number: usize| -> Result<f64> {
        let before = hosts.sent()?;
        let mut job = hosts.mpirun(1, &format!("{program} {number}"))?;
        let (status, _, stderr) = ended(job.output()?)?;
        ensure!(status == 0, "status {status}\n{stderr}");
        Ok(hosts.sent()? - before)
    };
    // the last argument of a program counts its examples or its steps: a step is `of_a_step` of them
    let is_predicted = |program: &str, of_a_step: usize, steps: usize, predicted: f64| {
        let more = sent(program, (1 + steps) * of_a_step)? - sent(program, of_a_step)?;
        let ratio = more / steps as f64 / predicted;
        println!("{program}: {ratio:.3} of {predicted} bytes");
        let is_near = (0.98..1.03).contains(&ratio);
        ensure!(is_near, "{program}: {ratio} of {predicted} bytes");
        anyhow::Ok(())
    };
    let (resnet18, lenet) = (4.0 * 11_175_370.0, 4.0 * 129_068.0);
    // with star the second host has two vectors: the sum of the first three replicas waits for both
    for (star, vectors) in [("", 1.0), ("--allreduce star", 1.5)] {
        let program = format!(
            "concise --backend mpi --device cpu --threads 1 --data synthetic --limit-test 4 --epochs 1 \
             --batch-size 8 --gpus 4 {star} --limit-train"
        );
        is_predicted(&program, 8, 1, vectors * resnet18)?;
    }
    for (step, vectors) in [
        ("processes", 1.0),
        ("optimizer_sharded", 1.5),
        ("gradients_sharded", 1.0),
        ("parameters_sharded", 1.5),
    ] {
        is_predicted(&format!("seven-diffs {step} 1"), 1, 20, vectors * lenet)?;
    }
    Ok(())
}

/// A job that would train for minutes ends within 30 s, and not well. It is Open MPI's daemons that find out, if they
/// are told to look.
fn they_miss_a_host_that_is_cut_off() -> Result<()> {
    let hosts = Hosts::new()?;
    // into a file: a pipe would stay open until the last process ends
    let said = hosts.folder.path().join("said");
    let file = fs::File::create(&said)?;
    let mut command = hosts.mpirun(2, &format!("{LONG} --timeout 60"))?;
    let mut mpirun = command.stdout(file.try_clone()?).stderr(file).spawn()?;
    let (mut all, job) = (Vec::new(), mpirun.id());
    until_they_train(&mut mpirun, 4, || {
        all = below(job);
        all.iter().filter(|pid| trains(**pid)).count()
    })
    .with_context(|| fs::read_to_string(&said).unwrap_or_default())?;
    let start = Instant::now();
    ip(&format!("-n {} link set cable down", hosts.names[0]))?;
    let status = mpirun.wait()?;
    let output = fs::read_to_string(&said)?;
    ensure!(!status.success(), "{status}\n{output}");
    let took = all_are_gone(&all, start).with_context(|| output.clone())?;
    ensure!(took < Duration::from_secs(30), "{took:?}");
    has(&output, "lost communication with a remote daemon")
}

/// `examples/goes_on.sh`, with two processes on each host. The cable is cut in the middle: the first host goes on alone,
/// and the result has the bits of an undisturbed run.
fn one_goes_on_without_the_other() -> Result<()> {
    let hosts = Hosts::new()?;
    let [goes_on, run, said] =
        ["goes_on.sh", "run", "said"].map(|name| hosts.folder.path().join(name));
    fs::copy(root().join("examples/goes_on.sh"), &goes_on)?;
    let args = "--device cpu --data synthetic --limit-train 112 --limit-test 10 --epochs 1 --batch-size 16 \
                --lr 0.01 --gpus 4 --checkpoint-every 1 --threads 1";
    let undisturbed = hosts.folder.path().join("undisturbed");
    let whole = format!("{args} --out {}", undisturbed.display());
    succeeds("concise", &whole)?;
    let file = fs::File::create(&said)?;
    let program = as_program("concise --backend mpi --timeout 60")?;
    let mut script = hosts
        .on_the_first("sh")
        .arg(&goes_on)
        .arg(&run)
        .args(args.split(' '))
        .env("HOSTS", "10.77.0.1 10.77.0.2")
        .env("SLOTS", "2")
        .env("PROGRAM", program.join(" "))
        .stdout(file.try_clone()?)
        .stderr(file)
        .spawn()?;
    until_two_checkpoints(&run, &mut script)?;
    ip(&format!("-n {} link set cable down", hosts.names[1]))?;
    let (cut, status) = (Instant::now(), script.wait()?);
    let said = fs::read_to_string(&said)?;
    ensure!(status.success(), "{status}\n{said}");
    has(&said, "lost communication with a remote daemon")?;
    has(&said, "4 replicas in 4 processes (0 | 1 | 2 | 3)")?;
    has(&said, "4 replicas in 2 processes (0 1 | 2 3)")?;
    let took = cut.elapsed();
    ensure!(took < Duration::from_secs(90), "{took:?}\n{said}");
    same_runs(&undisturbed, &run)
}

/// SIGTERM to the script, and Slurm's warning to its own: a checkpoint, and no other start by the script itself.
fn the_script_ends_in_order() -> Result<()> {
    let hosts = Hosts::new()?;
    let path = |name: &str| hosts.folder.path().join(name);
    let args = "--device cpu --data synthetic --limit-train 4000 --limit-test 10 --batch-size 4 --lr 0.01 --gpus 2 \
                --threads 1";
    fs::copy(root().join("examples/goes_on.sh"), path("goes_on.sh"))?;
    let program = as_program("concise --backend mpi")?.join(" ");
    let slurm = fs::read_to_string(root().join("examples/slurm.sh"))?
        .replace("DIR", &path("queued").display().to_string())
        .replace(
            "mpirun target/release/concise --backend mpi --gpus 4",
            &format!("mpirun -n 2 {program} {args}"),
        );
    fs::write(path("slurm.sh"), slurm)?;
    fs::write(
        path("scontrol"),
        "#!/bin/sh\necho \"$@\" > \"${0%/*}/requeued\"\n",
    )?;
    ensure!(
        Command::new("chmod")
            .arg("+x")
            .arg(path("scontrol"))
            .status()?
            .success()
    );
    for (script, run, name, expected) in [
        ("goes_on.sh", "run", "-TERM", 130),
        ("slurm.sh", "queued", "-USR1", 130),
    ] {
        let file = fs::File::create(path("said"))?;
        let mut command = hosts.on_the_first("sh");
        command.arg(path(script));
        if run == "run" {
            command.arg(path(run)).args(args.split_whitespace());
        }
        let mut script = command
            .env("HOSTS", "10.77.0.1")
            .env("SLOTS", "2")
            .env("PROGRAM", &program)
            .env("SLURM_JOB_ID", "17")
            .stdout(file.try_clone()?)
            .stderr(file)
            .spawn()?;
        until_there(&path(run).join("steps.csv"), &mut script)?;
        signal(name, script.id())?;
        let status = script.wait()?;
        let said = fs::read_to_string(path("said"))?;
        ensure!(status.code() == Some(expected), "{status}\n{said}");
        has(&said, "interrupted in epoch 1 of 10, after step ")?;
        ensure!(
            said.matches("\ntest acc: ").count() == 1,
            "it began again:\n{said}"
        );
    }
    ensure!(fs::read_to_string(path("requeued"))? == "requeue 17\n");
    Ok(())
}

/// All processes below one.
fn below(process: u32) -> Vec<u32> {
    let mut all = children(process);
    let mut i = 0;
    while i < all.len() {
        all.extend(children(all[i]));
        i += 1;
    }
    all
}
