//! That memory does not grow with the layer, and that a kill or a full disk leaves nothing to trust. All need a process of
//! their own: this program, run again with [`CHILD`] as its first argument.

use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc;

use libtest_mimic::Trial;
use oci::{
    Client, Descriptor, DiffId, Digest, Interrupt, Layer, LayerWriter, Layout, Limits, Options, Permissions,
    Repository, Silent, Timestamp,
};

use crate::push::registry;
use crate::server::{Server, head, send};
use crate::{Need, trial};

/// Marks a child of these trials.
pub(crate) const CHILD: &str = "child-of-memory-trial";
/// How much the peak may lie above the start.
const GROWTH_KIB_MAX: u64 = 20 * 1024;
/// The layer: bytes that compress to nothing, and bytes that do not compress.
const EVEN_BYTES: u64 = 250 << 20;
const NOISE_BYTES: u64 = 50 << 20;
const GZIP: &str = "application/vnd.oci.image.layer.v1.tar+gzip";

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("memory::at_most_20_mb_for_a_layer_of_300_mb", &[], at_most_20_mb),
        trial("memory::a_kill_leaves_nothing_to_trust", &[], a_kill_leaves_nothing),
        trial("memory::a_full_disk_leaves_nothing_to_trust", &[Need::Root], a_full_disk_leaves_nothing),
    ]
}

fn at_most_20_mb() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let written = run(&["write", &path("made")]);
    let [digest, size, diff_id] = written[..] else { panic!("{written:?}") };
    let made = Layout::open(&dir.path().join("made")).unwrap();
    let blob = Descriptor::new(GZIP, Digest::parse(digest).unwrap(), size.parse().unwrap());
    assert!(blob.size > NOISE_BYTES);
    let file = made.blob_path(&blob.digest);
    let length = size.to_owned();
    let server = Server::start(move |_, stream| {
        send(stream, head("200 OK", &[("Content-Length", &length)]).as_bytes());
        // A client that has seen enough hangs up.
        let _ = std::io::copy(&mut fs::File::open(&file).unwrap(), stream);
    });
    run(&["pull", &path("pulled"), &server.host(), digest, size]);
    let taker = registry(|_, _| None);
    run(&["push", &path("pulled"), &taker.host(), digest, size]);
    assert_eq!(taker.requests().iter().map(|request| request.body.len() as u64).sum::<u64>(), blob.size);
    fs::create_dir(dir.path().join("root")).unwrap();
    run(&["unpack", &path("pulled"), &path("root"), digest, size, diff_id]);
    assert_eq!(fs::metadata(dir.path().join("root/even")).unwrap().len(), EVEN_BYTES);
    assert_eq!(fs::metadata(dir.path().join("root/noise")).unwrap().len(), NOISE_BYTES);
}

/// Runs a job in a child, holds its memory to the limit, and returns the words that it printed.
pub(crate) fn run(arguments: &[&str]) -> Vec<&'static str> {
    let output = spawn(arguments).wait_with_output().unwrap();
    assert!(output.status.success(), "{arguments:?}");
    // A few dozen bytes a test run.
    let text: &'static str = String::from_utf8(output.stdout).unwrap().leak();
    let mut words: Vec<&str> = text.split_whitespace().collect();
    let growth: u64 = words.pop().unwrap().parse().unwrap();
    assert!(growth <= GROWTH_KIB_MAX, "{}: expected at most {GROWTH_KIB_MAX} KiB, found {growth}", arguments[0]);
    words
}

fn spawn(arguments: &[&str]) -> Child {
    let program = std::env::current_exe().unwrap();
    Command::new(program).arg(CHILD).args(arguments).stdout(Stdio::piped()).spawn().unwrap()
}

/// The child's side: does one job, then prints what came of it and by how many KiB its peak exceeded its start.
pub(crate) fn child(arguments: &[String]) -> ExitCode {
    let before = status_kib("VmRSS:");
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let blob = |digest, size: &str| Descriptor::new(GZIP, Digest::parse(digest).unwrap(), size.parse().unwrap());
    match arguments[..] {
        ["write", dir] => {
            let layer = write(&Layout::open_or_create(Path::new(dir)).unwrap());
            println!("{} {} {}", layer.descriptor.digest, layer.descriptor.size, layer.diff_id);
        }
        ["pull", dir, host, digest, size] => {
            let layout = Layout::open_or_create(Path::new(dir)).unwrap();
            let repository = Repository::parse(&format!("{host}/x")).unwrap();
            let client = Client::new(Options::default()).unwrap();
            client.blob(&repository, &blob(digest, size), &layout, &Silent).unwrap();
        }
        ["push", dir, host, digest, size] => {
            let layout = Layout::open(Path::new(dir)).unwrap();
            let repository = Repository::parse(&format!("{host}/some/image")).unwrap();
            let client = Client::new(Options::default()).unwrap();
            client.push_blob(&repository, &blob(digest, size), &layout, &Silent).unwrap();
        }
        ["unpack", dir, root, digest, size, diff_id] => {
            let layout = Layout::open(Path::new(dir)).unwrap();
            let layer = Layer { descriptor: blob(digest, size), diff_id: DiffId::parse(diff_id).unwrap() };
            oci::unpack(&layout, &[layer], Path::new(root), Limits::default(), &Interrupt::default()).unwrap();
        }
        ["fill", dir] => fill(Path::new(dir)),
        ["refuse", host] => {
            let tag = Repository::parse(&format!("{host}/some/image")).unwrap().tagged("1").unwrap();
            println!("{}", Client::new(Options::default()).unwrap().resolve(&tag).unwrap_err());
        }
        _ => return ExitCode::FAILURE,
    }
    println!("{}", status_kib("VmHWM:") - before);
    ExitCode::SUCCESS
}

/// Stores a blob for which there is no room.
fn fill(dir: &Path) {
    let layout = Layout::open_or_create(dir).unwrap();
    let body = vec![7; 2 << 20];
    let error = layout.put(GZIP, &body).unwrap_err();
    assert_eq!(error.hint(), Some("free some disk space"), "{error:?}");
    assert_eq!(fs::read_dir(dir.join("blobs/sha256")).unwrap().count(), 0);
    layout.put(GZIP, b"room for this").unwrap();
}

fn write(layout: &Layout) -> Layer {
    // As whoever runs this, so that unpacking needs no root.
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let permissions = Permissions { mode: 0o644, uid, gid };
    let mut layer = LayerWriter::new(layout, Timestamp::from_epoch(0).unwrap()).unwrap();
    layer.file_from("even", permissions, EVEN_BYTES, std::io::repeat(b'a').take(EVEN_BYTES)).unwrap();
    layer.file_from("noise", permissions, NOISE_BYTES, Noise(1).take(NOISE_BYTES)).unwrap();
    layer.finish().unwrap()
}

/// Bytes that no compressor gets smaller: Marsaglia's xorshift64.
struct Noise(u64);

impl Read for Noise {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        for chunk in buffer.chunks_mut(8) {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            chunk.copy_from_slice(&self.0.to_le_bytes()[..chunk.len()]);
        }
        Ok(buffer.len())
    }
}

/// A line of /proc/self/status (`proc_pid_status(5)`).
fn status_kib(key: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(key)).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

fn a_kill_leaves_nothing() {
    let body = vec![7; 1 << 20];
    let blob = Descriptor::of(GZIP, &body);
    let dir = tempfile::tempdir().unwrap();
    let (sent, half_sent) = mpsc::channel();
    let length = body.len().to_string();
    let server = Server::start(move |_, stream| {
        send(stream, head("200 OK", &[("Content-Length", &length)]).as_bytes());
        send(stream, &body[..body.len() / 2]);
        if sent.send(()).is_ok() {
            // Until the client is killed.
            let _ = std::io::copy(stream, &mut std::io::sink());
        }
        send(stream, &body[body.len() / 2..]);
    });
    let path = dir.path().display().to_string();
    let mut child = spawn(&["pull", &path, &server.host(), &blob.digest.to_string(), &blob.size.to_string()]);
    half_sent.recv().unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    drop(half_sent);
    let layout = Layout::open_or_create(dir.path()).unwrap();
    assert!(!layout.has(&blob));
    assert_eq!(fs::read_dir(dir.path().join("blobs/sha256")).unwrap().count(), 0);
    let repository = Repository::parse(&format!("{}/x", server.host())).unwrap();
    Client::new(Options::default()).unwrap().blob(&repository, &blob, &layout, &Silent).unwrap();
    assert_eq!(layout.bytes(&blob).unwrap().len() as u64, blob.size);
}

fn a_full_disk_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    // The file system goes with the mount namespace, which goes with the process.
    let script = r#"mount -t tmpfs -o size=1m none "$1" && exec "$2" "$3" fill "$1""#;
    let program = std::env::current_exe().unwrap();
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script, "sh"]).arg(dir.path()).arg(program).arg(CHILD);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}
