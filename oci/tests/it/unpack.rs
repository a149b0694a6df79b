//! Unpacking: what images hold, layer upon layer, and what attackers put in.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use libtest_mimic::Trial;
use oci::{DiffId, Error, Interrupt, Layer, Layout, Limits};
use tar::EntryType;
use tempfile::TempDir;

use crate::tarball::{Tarball, gzip, store};
use crate::{Need, trial};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("unpack::whiteouts_hide_lower_layers_only", &[], whiteouts_hide_lower_layers_only),
        trial("unpack::opaque_directories_hide_lower_layers_only", &[], opaque_directories),
        trial("unpack::hard_links_reach_lower_layers", &[], hard_links_reach_lower_layers),
        trial("unpack::entries_replace_what_is_there", &[], entries_replace_what_is_there),
        trial("unpack::f25_links_in_paths_stay_inside", &[], f25_links_in_paths_stay_inside),
        trial("unpack::directories_keep_their_times", &[], directories_keep_their_times),
        trial("unpack::f26_undeclared_directories_are_0755", &[], undeclared_directories),
        trial("unpack::long_names_of_both_kinds", &[], long_names),
        trial("unpack::plain_and_many_member_layers", &[], plain_and_many_member_layers),
        trial("unpack::owners_modes_devices_and_attributes", &[Need::Root], owners_modes_devices_and_attributes),
        trial("unpack::attacks_are_refused_before_anything_is_written", &[], attacks_are_refused),
        trial("unpack::writes_through_links_stay_inside", &[], writes_through_links),
        trial("unpack::damage_is_named", &[], damage_is_named),
        trial("unpack::a_layer_that_inflates_past_the_limit", &[], inflates_past_the_limit),
        trial("unpack::an_interrupt_ends_it", &[], an_interrupt_ends_it),
    ]
}

/// A layout, and a root for its layers within a directory where nothing else may appear.
struct Scene {
    dir: TempDir,
    layout: Layout,
}

impl Scene {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::open_or_create(&dir.path().join("layout")).unwrap();
        fs::create_dir(dir.path().join("root")).unwrap();
        fs::write(dir.path().join("outside"), "untouched").unwrap();
        Self { dir, layout }
    }

    fn root(&self) -> PathBuf {
        self.dir.path().join("root")
    }

    fn unpack(&self, layers: &[Layer]) -> oci::Result<()> {
        let result = oci::unpack(&self.layout, layers, &self.root(), Limits::default(), &Interrupt::default());
        let outside = fs::read_to_string(self.dir.path().join("outside")).unwrap();
        assert_eq!((outside.as_str(), fs::read_dir(self.dir.path()).unwrap().count()), ("untouched", 3));
        assert_eq!(fs::metadata(self.dir.path().join("outside")).unwrap().nlink(), 1);
        result
    }

    fn stack(&self, tarballs: &[Tarball]) -> oci::Result<()> {
        let layers: Vec<Layer> = tarballs.iter().map(|tarball| tarball.store(&self.layout)).collect();
        self.unpack(&layers)
    }

    /// All paths below the root, sorted; files with their content, links with their target.
    fn listing(&self) -> Vec<String> {
        fn walk(dir: &Path, root: &Path, lines: &mut Vec<String>) {
            for entry in fs::read_dir(dir).unwrap() {
                let path = entry.unwrap().path();
                let meta = fs::symlink_metadata(&path).unwrap();
                let name = path.strip_prefix(root).unwrap().display().to_string();
                if meta.is_dir() {
                    lines.push(format!("{name}/"));
                    walk(&path, root, lines);
                } else if meta.is_symlink() {
                    lines.push(format!("{name} -> {}", fs::read_link(&path).unwrap().display()));
                } else {
                    lines.push(format!("{name} = {}", fs::read_to_string(&path).unwrap()));
                }
            }
        }
        let mut lines = Vec::new();
        walk(&self.root(), &self.root(), &mut lines);
        lines.sort();
        lines
    }
}

fn new() -> Tarball {
    Tarball::default()
}

fn whiteouts_hide_lower_layers_only() {
    let scene = Scene::new();
    let lower =
        new().directory("d").file("d/a", "1").file("d/b", "1").directory("d/e").file("d/e/f", "1").symlink("l", "d");
    // The whiteout of d/b stands after the new d/b, that of a link removes the link, and some hide nothing.
    let upper = new().file("d/.wh.a", "").file("d/b", "2").file("d/.wh.b", "").file("d/.wh.e", "").file(".wh.l", "");
    let upper = upper.file("d/.wh.absent", "").file("no/where/.wh.x", "").file("d/.wh..wh.plnk", "");
    scene.stack(&[lower, upper]).unwrap();
    assert_eq!(scene.listing(), ["d/", "d/b = 2"]);
}

fn opaque_directories() {
    let scene = Scene::new();
    let lower = new().directory("d").file("d/a", "1").directory("d/e").file("d/e/f", "1").file("other", "1");
    let upper = new().directory("d").file("d/new", "2").file("d/.wh..wh..opq", "").directory("d/e").file("d/e/g", "2");
    scene.stack(&[lower, upper]).unwrap();
    assert_eq!(scene.listing(), ["d/", "d/e/", "d/e/g = 2", "d/new = 2", "other = 1"]);
}

fn hard_links_reach_lower_layers() {
    let scene = Scene::new();
    let lower = new().file("bin/a", "1").hard_link("bin/b", "bin/a").symlink("sbin", "bin");
    let upper = new().hard_link("c", "/sbin/a").hard_link("l", "./sbin");
    scene.stack(&[lower, upper]).unwrap();
    let inode = |name: &str| fs::symlink_metadata(scene.root().join(name)).unwrap().ino();
    assert_eq!((inode("bin/a"), inode("bin/a")), (inode("bin/b"), inode("c")));
    assert_eq!(inode("l"), inode("sbin"));
}

fn entries_replace_what_is_there() {
    let scene = Scene::new();
    let lower = new().file("kept", "1").hard_link("linked", "kept").directory("d").file("d/x", "1").symlink("s", "d");
    let lower = lower.directory("e").file("e/x", "1").file("f", "1");
    // A file takes a directory's place, a directory a link's and a file's; writing to a name never writes to its links.
    let upper = new().file("linked", "2").file("d", "2").directory("s").file("s/y", "2").directory("e").directory("f");
    scene.stack(&[lower, upper]).unwrap();
    assert_eq!(scene.listing(), ["d = 2", "e/", "e/x = 1", "f/", "kept = 1", "linked = 2", "s/", "s/y = 2"]);
}

/// `usr`-merged bases: `/lib` and `/bin` are links, and upper layers write below them.
fn f25_links_in_paths_stay_inside() {
    let scene = Scene::new();
    let lower = new().directory("usr/lib").directory("usr/bin").symlink("lib", "usr/lib").symlink("bin", "/usr/bin");
    let upper = new().file("lib/a", "2").file("bin/b", "2");
    scene.stack(&[lower, upper]).unwrap();
    let expected =
        ["bin -> /usr/bin", "lib -> usr/lib", "usr/", "usr/bin/", "usr/bin/b = 2", "usr/lib/", "usr/lib/a = 2"];
    assert_eq!(scene.listing(), expected);
}

fn directories_keep_their_times() {
    let scene = Scene::new();
    let lower = new().pax("mtime", b"12345.000000006").directory("./").directory("d").file("d/a", "1").file("d/b", "1");
    let upper =
        new().file("d/.wh.a", "").file("d/c", "2").hard_link("d/l", "d/b").pax("mtime", b"-1.5").file("old", "");
    scene.stack(&[lower, upper]).unwrap();
    let time = |name: &str| {
        let meta = fs::metadata(scene.root().join(name)).unwrap();
        (meta.mtime(), meta.mtime_nsec())
    };
    assert_eq!((time("d"), time("d/c")), ((1_000_000_000, 0), (1_000_000_000, 0)));
    assert_eq!((time(""), time("old")), ((12345, 6), (-2, 500_000_000)));
}

fn undeclared_directories() {
    let scene = Scene::new();
    scene.stack(&[new().file("a/b/c", "1")]).unwrap();
    for dir in ["a", "a/b"] {
        assert_eq!(fs::metadata(scene.root().join(dir)).unwrap().mode() & 0o7777, 0o755, "{dir}");
    }
}

fn long_names() {
    let scene = Scene::new();
    let (gnu, pax) = ("g".repeat(200), "p".repeat(200));
    let tarball = new().entry("././@LongLink", EntryType::GNULongName, format!("{gnu}\0").as_bytes(), |_| {});
    let tarball =
        tarball.file("short", "1").pax("path", pax.as_bytes()).pax("linkpath", gnu.as_bytes()).hard_link("x", "y");
    scene.stack(&[tarball]).unwrap();
    assert_eq!(scene.listing(), [format!("{gnu} = 1"), format!("{pax} = 1")]);
}

fn plain_and_many_member_layers() {
    let scene = Scene::new();
    let tar = new().file("a", &"x".repeat(2000)).tar();
    let plain = store(&scene.layout, &tar, DiffId::of(&tar));
    scene.unpack(&[plain]).unwrap();
    let members = [gzip(&tar[..700]), gzip(&tar[700..])].concat();
    scene.unpack(&[store(&scene.layout, &members, DiffId::of(&tar))]).unwrap();
    let zstd = store(&scene.layout, &[0x28, 0xb5, 0x2f, 0xfd, 0], DiffId::of(b""));
    assert!(scene.unpack(&[zstd]).unwrap_err().to_string().contains("found zstd"));
}

fn owners_modes_devices_and_attributes() {
    let scene = Scene::new();
    let capability = b"\x01\0\0\x02\0\x04\0\0\0\0\0\0\0\0\0\0\n\0\0\0";
    let owned = |path: &str, kind: EntryType, mode: u32, tarball: Tarball| {
        tarball.entry(path, kind, b"", |header| {
            header.set_mode(mode);
            header.set_uid(1000);
            header.set_gid(2000);
            header.set_device_major(1).unwrap();
            header.set_device_minor(3).unwrap();
            if kind == EntryType::Symlink {
                header.set_link_name_literal("suid").unwrap();
            }
        })
    };
    let mut tarball = new().pax("SCHILY.xattr.security.capability", &capability[..20]);
    for (path, kind, mode) in [
        ("suid", EntryType::Regular, 0o4755),
        ("sticky", EntryType::Directory, 0o1777),
        ("null", EntryType::Char, 0o666),
        ("block", EntryType::Block, 0o660),
        ("fifo", EntryType::Fifo, 0o620),
        ("link", EntryType::Symlink, 0o777),
    ] {
        tarball = owned(path, kind, mode, tarball);
    }
    let tarball = tarball.pax("SCHILY.xattr.user.note", b"a\nb\0c").pax("uid", b"4000000000").file("noted", "");
    scene.stack(&[tarball]).unwrap();
    let meta = |name: &str| fs::symlink_metadata(scene.root().join(name)).unwrap();
    for (name, mode) in [("suid", 0o4755), ("sticky", 0o1777), ("null", 0o666), ("block", 0o660), ("fifo", 0o620)] {
        assert_eq!((meta(name).mode() & 0o7777, meta(name).uid(), meta(name).gid()), (mode, 1000, 2000), "{name}");
    }
    assert_eq!((meta("link").uid(), meta("noted").uid()), (1000, 4_000_000_000));
    let types = ["null", "block", "fifo"].map(|name| meta(name).file_type());
    assert!(types[0].is_char_device() && types[1].is_block_device() && types[2].is_fifo());
    assert_eq!(meta("null").rdev(), rustix::fs::makedev(1, 3));
    let attribute = |file: &str, name: &str| {
        let mut value = [0; 64];
        let length = rustix::fs::lgetxattr(scene.root().join(file), name, &mut value[..]).unwrap();
        value[..length].to_vec()
    };
    assert_eq!(attribute("noted", "user.note"), b"a\nb\0c");
    assert_eq!(attribute("suid", "security.capability"), &capability[..20]);
}

fn attacks_are_refused() {
    let named = |path: &str| new().file("first", "1").file(path, "x");
    for (tarball, why) in [
        (named("../x"), "climbs"),
        (named("a/../../x"), "climbs"),
        (named("/../outside"), "climbs"),
        (named(".wh..."), "names no entry"),
        (named("d/.wh..wh..opq/x"), "reserved"),
        (named(".wh."), "names no entry"),
        (named(""), "no name"),
        (new().file("first", "1").pax("path", b"a\0b").file("a", "x"), "NUL"),
        (new().file("first", "1").pax("path", b"../x").file("a", "x"), "climbs"),
        (new().file("first", "1").hard_link("h", "../outside"), "climbs"),
        (new().file("first", "1").hard_link("h", "d/../../outside"), "climbs"),
        (new().file("first", "1").pax("linkpath", b"../outside").hard_link("h", "x"), "climbs"),
        (new().file("first", "1").entry("x", EntryType::new(b'Z'), b"", |_| {}), "unknown tar entry type 'Z'"),
        (new().file("first", "1").pax("GNU.sparse.major", b"1").file("x", ""), "sparse"),
    ] {
        let scene = Scene::new();
        let error = scene.stack(&[tarball]).unwrap_err().to_string();
        assert!(error.contains(why), "{why}: {error}");
        assert_eq!(scene.listing(), [""; 0], "{why}");
    }
}

fn writes_through_links() {
    // Whatever these links say, they are resolved with the root as `/`; most of them lead nowhere then.
    let outside = |target: &str| new().symlink("l", target).symlink("m", "l").file("real/x", "1");
    for (target, second, refused) in [
        ("/", new().file("l/x", "2"), false),
        ("..", new().file("l/x", "2"), false),
        ("../../..", new().file("l/x", "2"), false),
        ("/real/..", new().file("m/x", "2"), false),
        ("..", new().file("l/outside", "2"), false),
        ("../outside", new().file("l", "2"), false),
        ("../outside", new().file("l/x", "2"), true),
        ("/no/where", new().file("l/x", "2"), true),
        ("l", new().file("l/x", "2"), true),
        ("..", new().hard_link("h", "l/outside"), true),
        ("../outside", new().file("m", "").hard_link("h", "l"), false),
        ("..", new().file("l/.wh.outside", ""), false),
        ("..", new().file("l/.wh..wh..opq", ""), false),
        ("/proc/self/root", new().file("l/x", "2"), true),
        // The parent itself changes from link to directory.
        ("..", new().directory("l").file("l/outside", "2"), false),
    ] {
        let scene = Scene::new();
        let shown =
            format!("{target}: {:?}", scene.stack(&[outside(target), second.clone()]).map_err(|e| e.to_string()));
        assert_eq!(shown.contains("Err"), refused, "{shown}");
        // Within one layer, too.
        let scene = Scene::new();
        let both = Tarball::default().symlink("l", target).symlink("m", "l").file("real/x", "1");
        let _ = scene.stack(&[both, second]);
    }
    let scene = Scene::new();
    scene.stack(&[new().symlink("l", ".."), new().directory("l").file("l/outside", "2")]).unwrap();
    assert_eq!(scene.listing(), ["l/", "l/outside = 2"]);
    let overlay = new().pax("SCHILY.xattr.trusted.overlay.redirect", b"/x").file("a", "");
    assert!(Scene::new().stack(&[overlay]).unwrap_err().to_string().contains("overlay"));
}

fn damage_is_named() {
    let tar = new().file("a", &"abc".repeat(1000)).tar();
    let mut flipped = tar.clone();
    flipped[3] ^= 1;
    let whole = gzip(&tar);
    let mut wrong_sum = whole.clone();
    let crc = wrong_sum.len() - 8;
    wrong_sum[crc] ^= 1;
    for (blob, diff_id, why) in [
        (whole[..whole.len() / 2].to_vec(), DiffId::of(&tar), "ends too early"),
        (whole[..5].to_vec(), DiffId::of(&tar), "ends too early"),
        (wrong_sum, DiffId::of(&tar), "checksum"),
        ([&whole[..], b"more than a header"].concat(), DiffId::of(&tar), "gzip header"),
        (b"garbage".repeat(100), DiffId::of(b""), "numeric field"),
        (b"garbage".to_vec(), DiffId::of(b""), "mid-header"),
        (gzip(&flipped), DiffId::of(&flipped), "checksum: expected"),
        (gzip(&tar[..1000]), DiffId::of(&tar[..1000]), "mid-file"),
        (whole.clone(), DiffId::of(b"other"), "expected diff id sha256:"),
    ] {
        let scene = Scene::new();
        let layer = store(&scene.layout, &blob, diff_id);
        let error = scene.unpack(std::slice::from_ref(&layer)).unwrap_err().to_string();
        assert!(error.contains(why) && error.contains(&layer.descriptor.digest.to_string()), "{why}: {error}");
        assert_eq!(scene.listing(), [""; 0], "{why}");
    }
    let scene = Scene::new();
    let layer = new().file("a", "1").store(&scene.layout);
    fs::write(scene.layout.blob_path(&layer.descriptor.digest), gzip(&tar)).unwrap();
    assert!(matches!(scene.unpack(&[layer]), Err(Error::SizeMismatch { .. })));
    assert_eq!(scene.listing(), [""; 0]);
}

fn inflates_past_the_limit() {
    let scene = Scene::new();
    let layer = new().file("a", &"0".repeat(100_000)).store(&scene.layout);
    let unpack = |layer_bytes| {
        let layers = std::slice::from_ref(&layer);
        oci::unpack(&scene.layout, layers, &scene.root(), Limits { layer_bytes }, &Interrupt::default())
    };
    assert!(matches!(unpack(100_000), Err(Error::TooLarge { limit: 100_000, .. })));
    assert_eq!(scene.listing(), [""; 0]);
    unpack(200_000).unwrap();
}

fn an_interrupt_ends_it() {
    let scene = Scene::new();
    let layer = new().file("a", "1").store(&scene.layout);
    let interrupt = Interrupt::default();
    interrupt.raise();
    let result = oci::unpack(&scene.layout, &[layer], &scene.root(), Limits::default(), &interrupt);
    assert!(matches!(result, Err(Error::Interrupted)), "{result:?}");
    assert_eq!(scene.listing(), [""; 0]);
}
