//! What an ELF file says of itself: its machine, what it needs at run time, whether it stands alone (elf(5)).
//!
//! Reads headers and tables only, never a whole file, and never executes anything.

use std::fmt;
use std::fs::File;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use object::Endianness;
use object::elf::{self, FileHeader64};
use object::read::elf::{Dyn, FileHeader, ProgramHeader, SectionHeader, Sym};
use object::read::{ReadCache, StringTable};

/// How every ELF file begins.
pub const MAGIC: &[u8] = b"\x7fELF";

/// The headers of the one class and byte order that all our platforms have: 64 bits, little endian.
type Header = FileHeader64<Endianness>;

/// The machines of the platforms that we build for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Machine {
    /// linux/amd64.
    X86_64,
    /// linux/arm64.
    Aarch64,
}

impl Machine {
    /// The machine of a platform. Error: we build for no such architecture.
    pub fn of(platform: &oci::Platform) -> Result<Self> {
        match platform.architecture.as_str() {
            "amd64" => Ok(Self::X86_64),
            "arm64" => Ok(Self::Aarch64),
            other => bail!("find the machine of {platform}: expected amd64 or arm64, found {other}"),
        }
    }

    fn of_header(machine: elf::Machine) -> Result<Self> {
        match machine {
            elf::EM_X86_64 => Ok(Self::X86_64),
            elf::EM_AARCH64 => Ok(Self::Aarch64),
            other => bail!("machine: expected x86_64 or aarch64, found e_machine {}", other.0),
        }
    }
}

impl fmt::Display for Machine {
    /// The name that Rust and Debian's musl use.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::X86_64 => "x86_64",
            Self::Aarch64 => "aarch64",
        })
    }
}

/// What a program or library needs before it can run.
#[derive(Debug, PartialEq, Eq)]
pub struct Elf {
    /// What it runs on.
    pub machine: Machine,
    /// The dynamic loader (PT_INTERP); a static program and most libraries have none.
    pub interpreter: Option<String>,
    /// The sonames of the libraries (DT_NEEDED), in order.
    pub needed: Vec<String>,
    /// The folders in which these are looked for first (DT_RUNPATH, else DT_RPATH), `$ORIGIN` unresolved.
    pub runpath: Vec<String>,
}

/// Reads what `file` needs. Error: it cannot be read, or is no ELF file of a machine that we know.
#[expect(clippy::redundant_closure_for_method_calls, reason = "the method holds for one lifetime, the closure for all")]
pub fn dependencies(file: &Path) -> Result<Elf> {
    inspect(file, |image| image.dependencies())
}

/// Checks that `file` is made for `machine`. Error: it is not, or it is no ELF file of 64 bits.
pub fn check_machine(file: &Path, machine: Machine) -> Result<()> {
    inspect(file, |image| image.check_machine(machine))
}

/// Checks that `file` runs on `machine` with nothing but the kernel: no interpreter, no library, and no memory that is
/// writable and executable at once. Error: what was expected and what was found.
pub fn check_static(file: &Path, machine: Machine) -> Result<()> {
    inspect(file, |image| {
        let elf = image.dependencies()?;
        image.check_machine(machine)?;
        if let Some(interpreter) = elf.interpreter {
            bail!("interpreter: expected none, found {interpreter}");
        }
        ensure!(elf.needed.is_empty(), "libraries: expected none, found {}", elf.needed.join(", "));
        let both = elf::PF_W | elf::PF_X;
        let mut loaded = image.segments()?.iter().filter(|segment| segment.p_type(image.endian) == elf::PT_LOAD);
        if let Some(segment) = loaded.find(|segment| segment.p_flags(image.endian).0 & both.0 == both.0) {
            let address = segment.p_vaddr(image.endian);
            bail!("segment at {address:#x}: expected writable or executable, found both");
        }
        Ok(())
    })
    .context("expected a static program")
}

/// A section that is loaded, and what is in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Section {
    /// Such as `.text`.
    pub name: String,
    /// Bytes in memory.
    pub size: u64,
    /// Whether it takes as many bytes of the file (SHT_NOBITS takes none).
    pub in_file: bool,
    /// Its symbols, largest first; what no symbol covers is one of them, so that their sizes add up to the section's.
    pub symbols: Vec<Symbol>,
}

/// A function or a datum.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Symbol {
    /// As people wrote it.
    pub name: String,
    /// Bytes.
    pub size: u64,
}

/// What is called so in a section where no symbol is: strings, constants that the compiler made, padding.
pub const NAMELESS: &str = "(no symbol)";

/// The loaded sections of a program with their symbols, in the file's order; of a stripped one, each is nameless. Error: it cannot be read,
/// or its tables are damaged.
#[expect(clippy::redundant_closure_for_method_calls, reason = "the method holds for one lifetime, the closure for all")]
pub fn sections(file: &Path) -> Result<Vec<Section>> {
    inspect(file, |image| image.sections())
}

/// An ELF file, opened.
struct Image<'a> {
    data: &'a ReadCache<File>,
    header: &'a Header,
    endian: Endianness,
}

fn inspect<T>(path: &Path, look: impl FnOnce(&Image) -> Result<T>) -> Result<T> {
    let read = || {
        let data = ReadCache::new(File::open(path)?);
        let data = &data;
        let header = Header::parse(data).context("expected an ELF file of 64 bits")?;
        let endian = header.endian()?;
        ensure!(endian == Endianness::Little, "byte order: expected little endian, found big endian");
        look(&Image { data, header, endian })
    };
    read().with_context(|| format!("read ELF file {}", path.display()))
}

impl<'a> Image<'a> {
    fn segments(&self) -> Result<&'a [<Header as FileHeader>::ProgramHeader]> {
        self.header.program_headers(self.endian, self.data).context("read program headers")
    }

    fn machine(&self) -> Result<Machine> {
        Machine::of_header(self.header.e_machine(self.endian))
    }

    fn check_machine(&self, expected: Machine) -> Result<()> {
        let found = self.machine()?;
        ensure!(found == expected, "machine: expected {expected}, found {found}");
        Ok(())
    }

    fn dependencies(&self) -> Result<Elf> {
        let mut elf = Elf { machine: self.machine()?, interpreter: None, needed: Vec::new(), runpath: Vec::new() };
        let mut entries = Vec::new();
        for segment in self.segments()? {
            if let Some(interpreter) = segment.interpreter(self.endian, self.data)? {
                elf.interpreter = Some(text(interpreter)?);
            }
            if let Some(dynamic) = segment.dynamic(self.endian, self.data)? {
                let used = dynamic.iter().take_while(|entry| entry.d_tag(self.endian) != elf::DT_NULL);
                entries.extend(used.map(|entry| (entry.d_tag(self.endian), entry.d_val(self.endian))));
            }
        }
        let values = |wanted| entries.iter().filter(move |(tag, _)| *tag == wanted).map(|(_, value)| *value);
        let (Some(start), Some(size)) = (values(elf::DT_STRTAB).next(), values(elf::DT_STRSZ).next()) else {
            return Ok(elf);
        };
        let start = self.offset(start)?;
        let strings = StringTable::new(self.data, start, start.saturating_add(size));
        let string = |offset: u64| {
            let bytes = u32::try_from(offset).ok().and_then(|offset| strings.get(offset).ok());
            text(bytes.context("read dynamic strings: an entry points outside of the table")?)
        };
        elf.needed = values(elf::DT_NEEDED).map(string).collect::<Result<_>>()?;
        let folders =
            values(elf::DT_RUNPATH).next().or_else(|| values(elf::DT_RPATH).next()).map(string).transpose()?;
        elf.runpath = folders.iter().flat_map(|folders| folders.split(':')).map(str::to_owned).collect();
        Ok(elf)
    }

    fn sections(&self) -> Result<Vec<Section>> {
        let endian = self.endian;
        let table = self.header.sections(endian, self.data).context("read section headers")?;
        let symbols = table.symbols(endian, self.data, elf::SHT_SYMTAB).context("read symbols")?;
        // Start and end of each symbol that is a part of the program, and its name.
        let mut parts = Vec::new();
        for symbol in symbols.iter().filter(|symbol| symbol.st_size(endian) > 0) {
            let name = symbol.name(endian, symbols.strings()).context("read a symbol's name")?;
            let start = symbol.st_value(endian);
            parts.push((start, start.saturating_add(symbol.st_size(endian)), name));
        }
        // Of several names for one place the longest range comes first, and keeps it.
        parts.sort_by_key(|&(start, end, name)| (start, std::cmp::Reverse(end), name));
        let loaded = table.iter().filter(|section| section.sh_flags(endian).0 & elf::SHF_ALLOC.0 != 0);
        loaded
            .map(|section| {
                let (start, size) = (section.sh_addr(endian), section.sh_size(endian));
                let name = text(table.section_name(endian, section).context("read a section's name")?)?;
                let in_file = section.sh_type(endian) != elf::SHT_NOBITS;
                Ok(Section { name, size, in_file, symbols: within(start, start.saturating_add(size), &parts)? })
            })
            .collect()
    }

    /// Where in the file the byte at a virtual address lies.
    fn offset(&self, address: u64) -> Result<u64> {
        let loaded = self.segments()?.iter().filter(|segment| segment.p_type(self.endian) == elf::PT_LOAD);
        for segment in loaded {
            let within = address.checked_sub(segment.p_vaddr(self.endian));
            if let Some(within) = within.filter(|within| *within < segment.p_filesz(self.endian)) {
                return Ok(segment.p_offset(self.endian).saturating_add(within));
            }
        }
        bail!("find address {address:#x} in the file: expected it in a loaded segment, found none")
    }
}

/// The sizes of the parts between two addresses, largest first. A byte that two parts share counts for the first one.
fn within(start: u64, end: u64, parts: &[(u64, u64, &[u8])]) -> Result<Vec<Symbol>> {
    let (mut reached, mut nameless, mut symbols) = (start, 0, Vec::new());
    for (from, to, name) in parts.iter().filter(|(from, ..)| (start..end).contains(from)) {
        let from = reached.max(*from);
        let to = end.min(*to).max(from);
        nameless += from - reached;
        if to > from {
            let name = format!("{:#}", rustc_demangle::demangle(&text(name)?));
            symbols.push(Symbol { name, size: to - from });
        }
        reached = to;
    }
    nameless += end - reached;
    if nameless > 0 {
        symbols.push(Symbol { name: NAMELESS.to_owned(), size: nameless });
    }
    symbols.sort_by(|left, right| (right.size, &left.name).cmp(&(left.size, &right.name)));
    Ok(symbols)
}

fn text(bytes: &[u8]) -> Result<String> {
    Ok(std::str::from_utf8(bytes).context("read an ELF string: expected UTF-8")?.to_owned())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The test itself: a program that is surely of this machine, and dynamic where the target is.
    fn own_program() -> std::path::PathBuf {
        std::env::current_exe().unwrap()
    }

    #[test]
    fn a_dynamic_program_is_not_static() {
        let elf = dependencies(Path::new("/bin/true")).unwrap();
        assert!(elf.interpreter.as_deref().is_some_and(|path| path.contains("ld")), "{elf:?}");
        assert!(elf.needed.iter().any(|soname| soname.starts_with("libc.so")), "{elf:?}");

        let error = check_static(Path::new("/bin/true"), elf.machine).unwrap_err();
        let error = format!("{error:#}");
        assert!(error.contains("/bin/true") && error.contains("interpreter: expected none, found /"), "{error}");
    }

    #[test]
    fn a_wrong_machine_is_named() {
        let (own, other) = match std::env::consts::ARCH {
            "x86_64" => (Machine::X86_64, Machine::Aarch64),
            _ => (Machine::Aarch64, Machine::X86_64),
        };
        assert_eq!(dependencies(&own_program()).unwrap().machine, own);
        let error = format!("{:#}", check_static(&own_program(), other).unwrap_err());
        assert!(error.contains(&format!("machine: expected {other}, found {own}")), "{error}");
    }

    /// The smallest file that is a program: a header and one loaded segment with these `p_flags`.
    pub(crate) fn minimal(machine: elf::Machine, flags: u32) -> Vec<u8> {
        let mut bytes = b"\x7fELF\x02\x01\x01".to_vec();
        bytes.resize(64 + 56, 0);
        let mut put = |offset: usize, value: &[u8]| bytes[offset..offset + value.len()].copy_from_slice(value);
        put(16, &elf::ET_EXEC.0.to_le_bytes());
        put(18, &machine.0.to_le_bytes());
        put(20, &1u32.to_le_bytes()); // e_version
        put(32, &64u64.to_le_bytes()); // e_phoff
        put(52, &[64, 0, 56, 0, 1, 0]); // e_ehsize, e_phentsize, e_phnum
        put(64, &elf::PT_LOAD.0.to_le_bytes());
        put(68, &flags.to_le_bytes());
        bytes
    }

    #[test]
    fn segments_are_writable_or_executable() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("program");
        let (r, w, x) = (elf::PF_R.0, elf::PF_W.0, elf::PF_X.0);
        for (flags, accepted) in [(r, true), (r | w, true), (r | x, true), (r | w | x, false), (w | x, false)] {
            std::fs::write(&path, minimal(elf::EM_AARCH64, flags)).unwrap();
            let checked = check_static(&path, Machine::Aarch64);
            assert_eq!(checked.is_ok(), accepted, "flags {flags}: {checked:?}");
        }
        std::fs::write(&path, minimal(elf::EM_RISCV, r)).unwrap();
        let error = format!("{:#}", dependencies(&path).unwrap_err());
        assert!(error.contains("expected x86_64 or aarch64, found e_machine 243"), "{error}");
    }

    #[test]
    fn bytes_that_symbols_share_count_once() {
        let parts: [(u64, u64, &[u8]); 5] = [
            (10, 14, b"before"),
            (20, 50, b"_ZN4init4main17h0123456789abcdefE"),
            (20, 30, b"alias"),
            (45, 60, b"overlaps"),
            (70, 90, b"beyond"),
        ];
        let found = within(16, 80, &parts).unwrap();
        let found: Vec<_> = found.iter().map(|symbol| (symbol.name.as_str(), symbol.size)).collect();
        assert_eq!(found, [("init::main", 30), (NAMELESS, 14), ("beyond", 10), ("overlaps", 10)]);
    }

    #[test]
    fn other_files_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let head = std::fs::read(own_program()).unwrap()[..100].to_vec();
        for (name, bytes) in [("empty", Vec::new()), ("script", b"#!/bin/sh\n".to_vec()), ("cut", head)] {
            let path = folder.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            let error = format!("{:#}", dependencies(&path).unwrap_err());
            assert!(error.contains(name), "{error}");
        }
    }
}
