//! The Unix socket of a service, for people and programs of the same machine.
//!
//! A request is a line, an answer a line of JSON; an object with `error` refuses the request. Only the socket's owner may
//! use it (mode 0600). The socket is bound in a private directory, gets its mode there, and is then linked to its final
//! name, so no other user can connect before. A socket under this name that has no listener is from a killed process.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinSet;
use tokio::time::{Duration, timeout};

/// Longest request with its line end, in bytes.
const MOST: u64 = 4_096;
/// Longest time for a request, and for its answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Pause after accepting a caller failed.
const PAUSE: Duration = Duration::from_millis(100);

/// A service that answers requests.
pub trait Answer: Clone + Send + Sync + 'static {
    /// The answer to a request line, as JSON.
    fn answer(&self, line: &str) -> impl Future<Output = String> + Send;
}

/// An answer that refuses the request.
#[derive(Debug, Serialize, Deserialize)]
struct Refused {
    error: String,
}

/// The answer that refuses a request.
pub fn refusal(why: &str) -> String {
    serde_json::to_string(&Refused { error: why.to_owned() }).unwrap_or_default()
}

/// A value as the answer.
pub fn reply(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_else(|error| refusal(&error.to_string()))
}

/// Listens on the Unix socket at `path`.
///
/// # Errors
/// When another program listens there, or the file cannot be created; the message says what to do.
pub fn listen(path: &Path) -> io::Result<UnixListener> {
    remove_left_over(path);
    bind(path).map_err(|error: io::Error| io::Error::new(error.kind(), explained(path, &error)))
}

/// Binds a socket that gets its mode before its final name.
fn bind(path: &Path) -> io::Result<UnixListener> {
    // Fails if the name is too long for a socket.
    std::os::unix::net::SocketAddr::from_pathname(path)?;
    let private = path.with_file_name(format!(".{:08x}", getrandom::u32()?));
    fs::DirBuilder::new().mode(0o700).create(&private)?;
    let inside = private.join("s");
    let bound = UnixListener::bind(&inside).and_then(|listener| {
        fs::set_permissions(&inside, fs::Permissions::from_mode(0o600))?;
        // Unlike a rename, a link never replaces a file.
        fs::hard_link(&inside, path)?;
        Ok(listener)
    });
    // If this fails, a private, empty directory stays, which does no harm.
    let _ = fs::remove_file(&inside);
    let _ = fs::remove_dir(&private);
    bound
}

/// Removes the socket of a process that was killed.
fn remove_left_over(path: &Path) {
    let Ok(number) = getrandom::u32() else { return };
    let aside = path.with_file_name(format!(".{number:08x}"));
    if !is_left_over(path) || fs::rename(path, &aside).is_err() {
        return;
    }
    // Since the question, another process may have taken the name: it gets it back.
    if !is_left_over(&aside) {
        let _ = fs::hard_link(&aside, path);
    }
    let _ = fs::remove_file(&aside);
}

/// Removes what killed processes of the same user left next to this socket, if it has a name as programs choose it,
/// `anabranch-….sock`.
fn remove_left_overs_beside(path: &Path) {
    let is_ours = |path: &Path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("anabranch-") && name.ends_with(".sock")
    };
    let user = |path: &Path| fs::symlink_metadata(path).map(|found| found.uid()).ok();
    let Some(directory) = path.parent().filter(|_| is_ours(path)) else { return };
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let other = entry.path();
        if is_ours(&other) && user(&other) == user(path) {
            remove_left_over(&other);
        }
    }
}

/// True for a socket without a listener.
fn is_left_over(path: &Path) -> bool {
    let refusal = || std::os::unix::net::UnixStream::connect(path).err().map(|error| error.kind());
    is_socket(path) && refusal() == Some(io::ErrorKind::ConnectionRefused)
}

fn is_socket(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket())
}

fn explained(path: &Path, error: &io::Error) -> String {
    let (file, directory) = (path.display(), path.parent().filter(|parent| *parent != Path::new("")));
    let directory = directory.unwrap_or(Path::new(".")).display();
    let why = match error.kind() {
        io::ErrorKind::AlreadyExists if is_socket(path) => {
            "another program answers there, perhaps this one run twice: end it, or name another file"
                .to_owned()
        }
        io::ErrorKind::AlreadyExists => {
            format!("there is a file that is no socket: remove it (`rm {file}`), or name another")
        }
        io::ErrorKind::NotFound => {
            format!(
                "there is no directory {directory}: make it (`mkdir -p {directory}`), or name another file"
            )
        }
        io::ErrorKind::PermissionDenied => {
            format!("this user may not make files in {directory} (`ls -ld {directory}`): name another file")
        }
        io::ErrorKind::InvalidInput => {
            "the system takes no name of a socket that is so long: name a shorter one".to_owned()
        }
        _ => error.to_string(),
    };
    format!("cannot listen on {file}: {why}")
}

/// A Unix socket at which a service answers; dropping it removes the file.
#[derive(Debug)]
pub struct Socket {
    _task: JoinSet<()>,
    file: PathBuf,
}

impl Socket {
    pub fn open(file: &Path, service: impl Answer) -> io::Result<Self> {
        let mut task = JoinSet::new();
        task.spawn(serve(listen(file)?, service));
        remove_left_overs_beside(file);
        Ok(Self { _task: task, file: file.to_owned() })
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // The file may already be gone.
        let _ = fs::remove_file(&self.file);
    }
}

/// Answers callers of the Unix socket.
pub async fn serve(listener: UnixListener, service: impl Answer) {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // Probably too many open files; callers wait.
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        let service = service.clone();
        tokio::spawn(async move {
            // A caller that disconnects or is too slow gets no answer.
            let _ = timeout(PATIENCE, answer(stream, &service)).await;
        });
    }
}

async fn answer(stream: UnixStream, service: &impl Answer) -> io::Result<()> {
    let (reader, mut writer) = stream.into_split();
    let mut line = String::new();
    BufReader::new(reader.take(MOST)).read_line(&mut line).await?;
    // The beginning of a request may mean something else.
    let is_cut = line.len() as u64 == MOST && !line.ends_with('\n');
    let reply = if is_cut { refusal(&too_long()) } else { service.answer(&line).await };
    writer.write_all(format!("{reply}\n").as_bytes()).await
}

fn too_long() -> String {
    format!("a request has at most {} bytes", MOST - 1)
}

/// Asks the service behind a Unix socket.
///
/// # Errors
/// If no service answers there, or it refuses, or the request is too long.
pub async fn ask<T: DeserializeOwned>(path: &Path, request: &str) -> io::Result<T> {
    if request.len() as u64 >= MOST {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, too_long()));
    }
    let asked = async {
        let mut stream = UnixStream::connect(path).await?;
        stream.write_all(format!("{request}\n").as_bytes()).await?;
        let mut text = String::new();
        stream.read_to_string(&mut text).await?;
        if let Ok(Refused { error }) = serde_json::from_str(&text) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, error));
        }
        Ok(serde_json::from_str(&text)?)
    };
    timeout(PATIENCE, asked).await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn errors_about_the_socket_say_what_to_do() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let refused = |name: &str| listen(&at(name)).unwrap_err().to_string();
        let first = listen(&at("r.sock")).unwrap();
        let told = refused("r.sock");
        assert!(told.contains("r.sock: another program answers there"), "{told}");
        drop(first);
        drop(listen(&at("r.sock")).expect("what a killed run left over is no hindrance"));
        fs::write(at("notes.txt"), "keep me").unwrap();
        let told = refused("notes.txt");
        assert!(told.contains("no socket") && told.contains("rm "), "{told}");
        assert!(at("notes.txt").exists());
        let told = refused("none/r.sock");
        assert!(told.contains("no directory") && told.contains("mkdir -p"), "{told}");
        let told = refused(&"long".repeat(40));
        assert!(told.contains("shorter"), "{told}");
    }

    #[tokio::test]
    async fn sockets_of_killed_runs_are_removed_by_the_next_one_and_no_other_files() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let _live = listen(&at("anabranch-proxy-1.sock")).unwrap();
        for name in ["anabranch-tunnel-a.sock", "anabranch-exit-2.sock", "other.sock"] {
            drop(listen(&at(name)).unwrap());
        }
        fs::write(at("anabranch-notes.sock"), "keep me").unwrap();
        let names = || {
            let mut names: Vec<_> =
                fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
            names.sort();
            names
        };
        let stay = ["anabranch-notes.sock", "anabranch-proxy-1.sock", "other.sock"];
        // A child that another test starts holds a socket until it runs its program.
        for _ in 0..1_000 {
            drop(Socket::open(&at("anabranch-tunnel-b.sock"), Echo).unwrap());
            if names() == stay {
                break;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(names(), stay);
    }

    #[tokio::test]
    async fn a_socket_has_its_mode_from_its_first_moment_and_leaves_nothing_beside_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("control.sock");
        let watched = path.clone();
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        // Checks the socket repeatedly from before it exists.
        let watcher = std::thread::spawn(move || {
            let mut modes = std::collections::BTreeSet::new();
            while stopped.try_recv().is_err() {
                modes.extend(fs::metadata(&watched).map(|found| found.mode() & 0o777));
            }
            modes
        });
        // A child that another test starts holds the socket until it runs its program.
        let open = || {
            let mut tries = 0..1_000;
            loop {
                match listen(&path) {
                    Err(_) if tries.next().is_some() => {
                        std::thread::sleep(std::time::Duration::from_millis(1));
                    }
                    found => return found.unwrap(),
                }
            }
        };
        for _ in 0..200 {
            drop(open());
        }
        stop.send(()).unwrap();
        let modes = watcher.join().unwrap();
        assert!(modes.iter().all(|mode| *mode == 0o600), "{modes:?}");
        let names: Vec<_> =
            fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["control.sock"]);
        let asked = tokio::spawn(serve(open(), Echo));
        assert_eq!(ask::<String>(&path, "hello").await.unwrap(), "hello");
        asked.abort();
    }

    #[tokio::test]
    async fn a_request_that_is_too_long_is_refused_and_not_cut() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("control.sock");
        let _socket = Socket::open(&path, Echo).unwrap();
        let longest = "x".repeat(MOST as usize - 1);
        assert_eq!(ask::<String>(&path, &longest).await.unwrap(), longest);
        let told = ask::<String>(&path, &format!("{longest}x")).await.unwrap_err().to_string();
        assert!(told.contains("4095 bytes"), "{told}");
        // Another program may send it all the same.
        let mut stream = UnixStream::connect(&path).await.unwrap();
        stream.write_all(&[b'x'; MOST as usize]).await.unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        assert!(serde_json::from_str::<Refused>(&text).is_ok(), "{text}");
    }

    #[derive(Clone)]
    struct Echo;

    impl Answer for Echo {
        async fn answer(&self, line: &str) -> String {
            reply(&line.trim())
        }
    }
}
