//! `cargo xtask deb`: builds Debian packages with the program and its debug information.
//!
//! The program's package has the stripped binary, the systemd units, shell completions and manual pages. Debug
//! information goes into a package of its own, where gdb and perf find it. Both are in `target/deb`.

use std::env;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::cargo::{cargo, cargo_output};
use crate::outcome::{Done, Outcome};

/// Where packages are built.
const BUILD: &str = "target/deb";
const DESCRIPTION: &str = "one flow over every path two machines have between them";
/// Files of the package in addition to binary, completions and manual pages: source and destination.
const FILES: [(&str, &str); 8] = [
    ("packaging/anabranch-relay.service", "lib/systemd/system/anabranch-relay.service"),
    ("packaging/anabranch-controller.service", "lib/systemd/system/anabranch-controller.service"),
    ("packaging/anabranch-tunnel@.service", "lib/systemd/system/anabranch-tunnel@.service"),
    ("packaging/anabranch-tunnel-serve@.service", "lib/systemd/system/anabranch-tunnel-serve@.service"),
    ("README.md", "usr/share/doc/anabranch/README.md"),
    ("CHANGELOG.md", "usr/share/doc/anabranch/changelog"),
    ("LICENSE-MIT", "usr/share/doc/anabranch/copyright-MIT"),
    ("LICENSE-APACHE", "usr/share/doc/anabranch/copyright-APACHE"),
];
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "usr/share/bash-completion/completions/anabranch"),
    ("zsh", "usr/share/zsh/vendor-completions/_anabranch"),
    ("fish", "usr/share/fish/vendor_completions.d/anabranch.fish"),
];

/// Builds the packages from an optimised binary.
pub fn build() -> Result<(), String> {
    cargo(&["build", "--profile", "dist", "--package", "anabranch"])?;
    for package in packages(&target().join("dist/anabranch"))? {
        eprintln!("xtask: {}", package.display());
    }
    Ok(())
}

/// Packs the binary that the tests ran, installs the package into an empty directory and runs the program there.
pub fn check() -> Outcome {
    if !runs(Command::new("dpkg-deb").arg("--version")) {
        return Ok(Done::Skipped("dpkg-deb is not installed".into()));
    }
    let binary = target().join("debug/anabranch");
    if !binary.is_file() {
        return Ok(Done::Skipped("there is no binary to pack; `cargo xtask test` builds one".into()));
    }
    let [package, _] = packages(&binary)?;
    let root = Path::new(BUILD).join("root");
    empty(&root)?;
    run(Command::new("dpkg-deb").arg("-x").args([&package, &root]))?;
    let installed = root.join("usr/bin/anabranch");
    let version = output(Command::new(&installed).arg("--version"))?;
    let wanted = format!("anabranch {}\n", version_of_workspace()?);
    if version != wanted {
        return Err(format!("the installed program prints {version:?} as its version, not {wanted:?}"));
    }
    let manual = root.join("usr/share/man/man1/anabranch-relay.1.gz");
    for (_, place) in FILES.iter().chain(&COMPLETIONS) {
        let file = root.join(place);
        if fs::metadata(&file).map_or(0, |file| file.len()) == 0 {
            return Err(format!("{} is missing or empty", file.display()));
        }
    }
    if manual.is_file() { Ok(Done::All) } else { Err(format!("{} is missing", manual.display())) }
}

/// Builds the program's package and that of its debug information.
fn packages(binary: &Path) -> Result<[PathBuf; 2], String> {
    let (version, architecture) =
        (version_of_workspace()?, output(Command::new("dpkg").arg("--print-architecture"))?);
    let (program, symbols) = (Path::new(BUILD).join("anabranch"), Path::new(BUILD).join("anabranch-dbgsym"));
    empty(&program)?;
    empty(&symbols)?;
    let installed = program.join("usr/bin/anabranch");
    let debug = symbols.join("usr/lib/debug/usr/bin/anabranch.debug");
    for file in [&installed, &debug] {
        make_parent(file)?;
    }
    run(Command::new("objcopy").arg("--only-keep-debug").args([binary, &debug]))?;
    run(Command::new("objcopy")
        .args(["--strip-unneeded", "--add-gnu-debuglink"])
        .args([&debug, binary, &installed]))?;
    chmod(&debug, 0o644)?;
    for (from, to) in FILES {
        copy(Path::new(from), &program.join(to))?;
    }
    for (shell, to) in COMPLETIONS {
        let script = output(Command::new(&installed).args(["completions", shell]))?;
        write(&program.join(to), &script)?;
    }
    let manual = program.join("usr/share/man/man1");
    run(Command::new(&installed).arg("man").arg(&manual))?;
    for page in entries(&manual)? {
        run(Command::new("gzip").args(["-9", "-n"]).arg(page))?;
    }
    let about = |name: &str, depends: &str, what: &str| {
        format!(
            "Package: {name}\nVersion: {version}\nArchitecture: {}\nMaintainer: Anabranch contributors <anabranch@localhost>\n\
             Section: net\nPriority: optional\nDepends: {depends}\nDescription: {what}\n",
            architecture.trim()
        )
    };
    write(&program.join("DEBIAN/control"), &about("anabranch", "libc6 (>= 2.34), libgcc-s1", DESCRIPTION))?;
    let depends = format!("anabranch (= {version})");
    write(
        &symbols.join("DEBIAN/control"),
        &about("anabranch-dbgsym", &depends, "debug information of anabranch"),
    )?;
    Ok([pack(&program, &version, &architecture)?, pack(&symbols, &version, &architecture)?])
}

/// Packs a directory as `NAME_VERSION_ARCHITECTURE.deb`.
fn pack(directory: &Path, version: &str, architecture: &str) -> Result<PathBuf, String> {
    let package = format!("{}_{version}_{}.deb", directory.display(), architecture.trim());
    run(Command::new("dpkg-deb")
        .args(["--root-owner-group", "-Zgzip", "--build"])
        .arg(directory)
        .arg(&package))?;
    Ok(package.into())
}

/// The directory in which cargo builds.
fn target() -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| "target".into(), PathBuf::from)
}

fn version_of_workspace() -> Result<String, String> {
    let id = cargo_output(&["pkgid", "--package", "anabranch"])?;
    let version = id.trim().rsplit(['#', '@']).next().unwrap_or_default();
    Ok(version.to_owned())
}

fn empty(directory: &Path) -> Result<(), String> {
    let _ = fs::remove_dir_all(directory);
    fs::create_dir_all(directory).map_err(|error| failed("create", directory, &error))
}

fn make_parent(file: &Path) -> Result<(), String> {
    let parent = file.parent().unwrap_or(file);
    fs::create_dir_all(parent).map_err(|error| failed("create", parent, &error))
}

fn copy(from: &Path, to: &Path) -> Result<(), String> {
    make_parent(to)?;
    fs::copy(from, to).map_err(|error| failed("copy", from, &error))?;
    chmod(to, 0o644)
}

fn write(file: &Path, text: &str) -> Result<(), String> {
    make_parent(file)?;
    fs::write(file, text).map_err(|error| failed("write", file, &error))
}

fn chmod(file: &Path, mode: u32) -> Result<(), String> {
    fs::set_permissions(file, fs::Permissions::from_mode(mode))
        .map_err(|error| failed("change", file, &error))
}

fn entries(directory: &Path) -> Result<Vec<PathBuf>, String> {
    let entries = fs::read_dir(directory).map_err(|error| failed("list", directory, &error))?;
    entries
        .map(|entry| entry.map(|entry| entry.path()).map_err(|error| failed("list", directory, &error)))
        .collect()
}

fn failed(what: &str, path: &Path, error: &std::io::Error) -> String {
    format!("cannot {what} {}: {error}", path.display())
}

fn runs(command: &mut Command) -> bool {
    command.stdout(Stdio::null()).status().is_ok_and(|status| status.success())
}

fn run(command: &mut Command) -> Result<(), String> {
    output(command).map(drop)
}

/// Runs a program and returns what it printed.
fn output(command: &mut Command) -> Result<String, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|error| format!("cannot start {name}: {error}"))?;
    if !output.status.success() {
        return Err(format!("{name}: {}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
