//! That a pull may be killed at any moment: the next run ends with the same image, and nothing half-written is left or
//! trusted. The puller is this program, run again with [`CHILD`] as its first argument.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::net::TcpStream;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use libtest_mimic::Trial;
use oci::{Client, Descriptor, Digest, Document, Layout, Manifest, Repository, Silent};

use crate::client::{OK, options};
use crate::server::{Request, Server, head, reply, send};
use crate::trial;

/// Marks a child of this trial.
pub(crate) const CHILD: &str = "child-of-kill-trial";
/// How often a pull is killed.
const KILLS: usize = 20;
/// How many of them must have been under way then.
const KILLS_FELT_MIN: usize = KILLS / 2;
/// Where the moments of the kills come from.
const SEED: u64 = 0x006f_6369;
/// A layer each.
const LAYER_BYTES: [usize; 6] = [900, 20_000, 65_536, 150_000, 400_000, 800_000];
/// So much comes at a time, and then a pause.
const PIECE_BYTES: usize = 16 * 1024;
const PIECE_PAUSE: Duration = Duration::from_millis(2);
/// How long the server may wait for the child to take what it wants.
const CHILD_TIMEOUT: Duration = Duration::from_secs(20);
/// The longest time from the moment at which so much was served to the kill.
const DELAY_MAX: Duration = Duration::from_millis(5);
const SIGKILL: i32 = 9;

pub(crate) fn trials() -> Vec<Trial> {
    vec![trial("killed::a_pull_killed_at_twenty_moments_ends_on_the_next_run", &[], killed_at_twenty_moments)]
}

/// Marsaglia's xorshift64.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

/// The kills so far: after how many bytes served, and how much later. Told where the trial fails.
#[derive(Debug, Default)]
struct Moments(Vec<(u64, Duration)>);

impl Drop for Moments {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("seed {SEED:#x}, killed after: {:?}", self.0);
        }
    }
}

/// How many bytes were served, and whether slowly.
#[derive(Default)]
struct Line {
    served: Mutex<u64>,
    moved: Condvar,
    slow: Mutex<bool>,
}

impl Line {
    fn carry(&self, bytes: &[u8], stream: &mut TcpStream) {
        for piece in bytes.chunks(PIECE_BYTES) {
            if stream.write_all(piece).is_err() {
                return;
            }
            *self.served.lock().unwrap() += piece.len() as u64;
            self.moved.notify_all();
            let slow = *self.slow.lock().unwrap();
            if slow {
                std::thread::sleep(PIECE_PAUSE);
            }
        }
    }

    fn wait_for(&self, bytes: u64) {
        let served = self.served.lock().unwrap();
        let (_served, end) = self.moved.wait_timeout_while(served, CHILD_TIMEOUT, |served| *served < bytes).unwrap();
        assert!(!end.timed_out(), "the child did not take {bytes} bytes in {CHILD_TIMEOUT:?}");
    }
}

/// Everything that a registry has for one image, by digest.
fn image() -> (Manifest, BTreeMap<String, Vec<u8>>) {
    let mut random = Random(SEED);
    let mut contents = vec![b"{}".to_vec()];
    contents.extend(LAYER_BYTES.map(|count| (0..count).map(|_| random.below(256) as u8).collect()));
    let mut blobs: Vec<Descriptor> = contents.iter().map(|content| Descriptor::of("a/b", content)).collect();
    let config = blobs.remove(0);
    let manifest = Manifest::new(oci::Family::Oci, &config, &blobs);
    contents.push(manifest.bytes().to_vec());
    (manifest, contents.into_iter().map(|content| (Digest::of(&content).to_string(), content)).collect())
}

/// A registry that serves several at once.
fn serve(contents: BTreeMap<String, Vec<u8>>, line: &Arc<Line>) -> Server {
    let (contents, line) = (Arc::new(contents), Arc::clone(line));
    Server::start(move |request: &Request, stream: &mut TcpStream| {
        let digest = request.path.rsplit('/').next().unwrap().to_owned();
        let (contents, line, mut stream) = (Arc::clone(&contents), Arc::clone(&line), stream.try_clone().unwrap());
        // Ends with its connection.
        std::thread::spawn(move || match contents.get(&digest) {
            Some(content) => {
                let length = content.len().to_string();
                send(&mut stream, head(OK, &[("Content-Length", &length)]).as_bytes());
                line.carry(content, &mut stream);
            }
            None => send(&mut stream, &reply("404 No", &[], b"")),
        });
    })
}

fn pull(dir: &Path, host: &str, digest: &Digest) {
    let layout = Layout::open_or_create(dir).unwrap();
    let (client, repository) = (Client::new(options()).unwrap(), Repository::parse(&format!("{host}/x")).unwrap());
    let Document::Manifest(manifest) = client.manifest(&repository, digest).unwrap() else { panic!("an index") };
    let blobs: Vec<Descriptor> = manifest.layers().iter().chain([manifest.config()]).cloned().collect();
    client.blobs(&repository, &blobs, &layout, &Silent).unwrap();
    layout.put(manifest.media_type(), manifest.bytes()).unwrap();
    layout.write_index(&[manifest.descriptor().with_ref_name("1")]).unwrap();
}

/// The child's side.
pub(crate) fn child(arguments: &[String]) -> ExitCode {
    let [dir, host, digest] = arguments else { return ExitCode::FAILURE };
    pull(Path::new(dir), host, &Digest::parse(digest).unwrap());
    ExitCode::SUCCESS
}

/// The names in a directory of files that are whole, each of which has the bytes that its name promises, and of those that
/// are not.
fn files(dir: &Path) -> (Vec<String>, usize) {
    let Ok(entries) = fs::read_dir(dir.join("blobs/sha256")) else { return (Vec::new(), 0) };
    let names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    let (partial, mut whole): (Vec<_>, Vec<_>) = names.into_iter().partition(|name| name.starts_with('.'));
    for name in &whole {
        let bytes = fs::read(dir.join("blobs/sha256").join(name)).unwrap();
        assert_eq!(Digest::of(&bytes).hex(), *name, "a corrupt blob");
    }
    whole.sort();
    (whole, partial.len())
}

fn killed_at_twenty_moments() {
    let (manifest, contents) = image();
    let mut expected: Vec<String> = contents.keys().map(|name| name.trim_start_matches("sha256:").to_owned()).collect();
    expected.sort();
    let total: u64 = contents.values().map(|content| content.len() as u64).sum();
    let line = Arc::<Line>::default();
    let server = serve(contents, &line);
    let (mut random, mut moments, mut felt) = (Random(SEED), Moments::default(), 0);
    for _ in 0..KILLS {
        let dir = tempfile::tempdir().unwrap();
        let (bytes, delay) = (random.below(total), Duration::from_micros(random.below(DELAY_MAX.as_micros() as u64)));
        moments.0.push((bytes, delay));
        *line.served.lock().unwrap() = 0;
        *line.slow.lock().unwrap() = true;
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.arg(CHILD).arg(dir.path()).arg(server.host()).arg(manifest.digest().to_string());
        let mut child = command.spawn().unwrap();
        line.wait_for(bytes);
        // Not to wait for anything: the delay is part of the moment.
        std::thread::sleep(delay);
        child.kill().unwrap();
        felt += usize::from(child.wait().unwrap().signal() == Some(SIGKILL));
        *line.slow.lock().unwrap() = false;
        files(dir.path());
        pull(dir.path(), &server.host(), &manifest.digest());
        assert_eq!(files(dir.path()), (expected.clone(), 0));
        let layout = Layout::open(dir.path()).unwrap();
        assert_eq!(layout.index().unwrap().manifests()[0].digest, manifest.digest());
        let left = fs::read_dir(dir.path())
            .unwrap()
            .filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().starts_with('.'));
        assert_eq!(left.count(), 0);
    }
    assert!(felt >= KILLS_FELT_MIN, "only {felt} of {KILLS} pulls were under way");
}
