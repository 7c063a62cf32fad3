// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs a program with a library of Reprieve's preloaded, unless the program could not use it.

use anyhow::{Context as _, Result, anyhow, bail};
use object::read::elf::{FileHeader as _, ProgramHeader as _};
use object::{Endianness, ReadCache, ReadRef as _, elf};
use std::ffi::{CString, OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// A library that can be preloaded.
pub struct Library {
    pub file: &'static str,
    /// The package that builds it.
    pub package: &'static str,
    /// The environment variable that names another file.
    pub variable: &'static str,
    /// Programs that have one of these symbols cannot use it, and why.
    pub refused: &'static [(&'static str, &'static str)],
}

/// A symbol of programs that have their own library in front of all others.
pub const ADDRESS_SANITIZER: (&str, &str) =
    ("__asan_init", "built with AddressSanitizer, which starts behind no other library");

/// Becomes the program, with the library preloaded, and the environment's variables set. Returns
/// only if that fails.
pub fn run(
    library: &Library,
    command: &[OsString],
    environment: impl FnOnce() -> Result<Vec<(&'static str, OsString)>>,
) -> Result<ExitCode> {
    let program = find(&command[0])?;
    check(library, &program, 4)?;
    let file = library.find()?;
    let environment = environment()?;
    if file.as_os_str().as_bytes().iter().any(|b| b" :\t\n".contains(b)) {
        bail!("{}: LD_PRELOAD takes no spaces or colons; install it elsewhere", file.display());
    }
    let mut preload = name_for_gnu(&file)?;
    if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        preload.push(":");
        preload.push(others);
    }
    let error = Command::new(&program)
        .arg0(&command[0])
        .args(&command[1..])
        .env("LD_PRELOAD", preload)
        .envs(environment)
        .exec();
    Err(error).with_context(|| format!("{}", program.display()))
}

/// A name by which only the GNU C library's loader finds the file: that puts its own directory for
/// `$LIB`, from where the name goes back to the root. Programs with other C libraries start without
/// the file, where they would fail with it. The plain name, if there is no such directory here.
fn name_for_gnu(file: &Path) -> Result<OsString> {
    let mut name = OsString::from("/$LIB/../../../../../../../..");
    name.push(file);
    // Without /proc this command cannot ask.
    let Ok(own) = std::env::current_exe() else { return Ok(file.into()) };
    let mut listed = Command::new(own);
    listed.env("LD_PRELOAD", &name).env("LD_TRACE_LOADED_OBJECTS", "1");
    let listed = listed.output().context("this command's own libraries")?.stdout;
    let wanted = file.file_name().unwrap_or_default().as_bytes();
    let found = listed.windows(wanted.len()).any(|part| part == wanted);
    Ok(if found { name } else { file.into() })
}

/// As the shell finds it.
fn find(name: &OsStr) -> Result<PathBuf> {
    if name.as_bytes().contains(&b'/') {
        return Ok(name.into());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let candidates = std::env::split_paths(&path).map(|directory| directory.join(name));
    let is_program = |file: &PathBuf| {
        file.metadata().is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
    };
    let found = candidates.into_iter().find(is_program);
    found.with_context(|| format!("{}: no such program in PATH", Path::new(name).display()))
}

impl Library {
    /// Beside this command, or where `make install` puts it.
    pub fn find(&self) -> Result<PathBuf> {
        let Library { file, package, variable, .. } = self;
        if let Some(named) = std::env::var_os(variable) {
            let named = PathBuf::from(named);
            return if named.is_file() {
                Ok(std::path::absolute(named)?)
            } else {
                bail!("{variable}: {}: no such file", named.display())
            };
        }
        let own = std::env::current_exe().with_context(|| {
            format!("cannot tell where this command is (is /proc there?): set {variable} to {file}")
        })?;
        let beside = own.parent().unwrap_or(Path::new("/"));
        let places = [beside.join(file), beside.join("../lib").join(file)];
        let Some(found) = places.iter().find(|place| place.is_file()) else {
            bail!(
                "no {file} in {} or ../lib: build package {package} (make build), or set {variable}",
                beside.display()
            );
        };
        Ok(found.canonicalize()?)
    }
}

/// The kernel reads no more of a script's first line or of a loader's name.
const LONGEST: u64 = libc::PATH_MAX as u64;

/// Fails with the reason if the program's loader would not preload the library.
fn check(library: &Library, program: &Path, interpreters: u32) -> Result<()> {
    let name = program.display();
    // The open of a pipe would wait for somebody who writes to it.
    let mut options = std::fs::File::options();
    let file = options.read(true).custom_flags(libc::O_NONBLOCK).open(program);
    let file = file.with_context(|| format!("{name}"))?;
    let about = file.metadata().with_context(|| format!("{name}"))?;
    if !about.is_file() {
        bail!("{name}: not a regular file");
    }
    if about.permissions().mode() & 0o6000 != 0 {
        bail!("{name} is set-uid or set-gid: the loader preloads nothing into it");
    }
    let path = CString::new(program.as_os_str().as_bytes())?;
    // SAFETY: strings; asks for the size only.
    let capabilities = unsafe {
        libc::getxattr(path.as_ptr(), c"security.capability".as_ptr(), std::ptr::null_mut(), 0)
    };
    if capabilities > 0 {
        bail!("{name} has file capabilities: the loader preloads nothing into it");
    }
    // A program that tools have changed may have anything anywhere in the file.
    let file = ReadCache::new(file);
    let head = (&file).read_bytes_at(0, about.len().min(LONGEST));
    let head = head.map_err(|()| anyhow!("{name}: cannot be read"))?;
    if let Some(line) = head.strip_prefix(b"#!") {
        let line = line.split(|&b| b == b'\n').next().unwrap_or_default();
        let mut words = line.split(|b| b" \t".contains(b)).filter(|word| !word.is_empty());
        let Some(interpreter) = words.next().filter(|_| interpreters > 0) else {
            bail!("{name}: no interpreter in its first line");
        };
        let interpreter = OsString::from_vec(interpreter.into());
        return check(library, Path::new(&interpreter), interpreters - 1)
            .with_context(|| format!("{name} is a script"));
    }
    let Ok(header) = elf::FileHeader64::<Endianness>::parse(&file) else {
        bail!("{name}: not a 64-bit ELF program, and not a script");
    };
    let endian = header.endian()?;
    let headers = header.program_headers(endian, &file)?;
    let loader = headers.iter().find(|h| h.p_type(endian) == elf::PT_INTERP);
    let Some(loader) = loader else {
        bail!("{name} is statically linked: it has no loader that could preload the library");
    };
    let (at, size) = (loader.p_offset(endian), loader.p_filesz(endian).min(LONGEST));
    let loader = (&file).read_bytes_at(at, size).unwrap_or_default();
    let loader = String::from_utf8_lossy(loader.split(|&b| b == 0).next().unwrap_or_default());
    if !loader.contains("/ld-linux") {
        bail!("{name} is not linked with the GNU C library, which the library needs: {loader}");
    }
    // Without such a table, it has none of these symbols either.
    let symbols = header
        .sections(endian, &file)
        .and_then(|sections| sections.symbols(endian, &file, elf::SHT_DYNSYM));
    let symbols = symbols.unwrap_or_default();
    let has = |wanted: &str| {
        symbols.iter().any(|s| symbols.symbol_name(endian, s).is_ok_and(|n| n == wanted.as_bytes()))
    };
    match library.refused.iter().find(|(symbol, _)| has(symbol)) {
        Some((_, why)) => bail!("{name} is {why}"),
        None => Ok(()),
    }
}
