//! The standing tickets of `anabranch serve` and `anabranch send --name`: one file each in the state directory, readable
//! by their owner only.
//!
//! A ticket lives as long as its file: a server that starts again reads it, and a running one notices when it is gone.
//! A change of a ticket locks the directory. A sender locks its ticket as long as it runs.

use std::fmt;
use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use anabranch_net::{ShareId, TicketSecret};
use anabranch_node::{TicketShare, caps_directory, file};
use anabranch_wire::Span;
use serde::{Deserialize, Serialize};
use zeroize::{Zeroize as _, Zeroizing};

use crate::errors::Failure;

/// Longer files are not tickets.
const LONGEST: u64 = 1 << 20;

/// The directory of all tickets.
#[derive(Clone, Debug)]
pub struct TicketStore(PathBuf);

/// A stored ticket.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stored {
    share: String,
    secret: String,
    pub rights: String,
    /// The folders that it opens.
    pub folders: Vec<PathBuf>,
    /// When it was made, in seconds since 1970.
    pub made_s: u64,
    /// When it expires, in seconds since 1970; `None` for never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_s: Option<u64>,
    /// The UDP port that it names; `None` if the command line decides.
    #[serde(skip_serializing_if = "Option::is_none")]
    port: Option<u16>,
    /// The sender's public key that it names.
    #[serde(skip_serializing_if = "Option::is_none")]
    node: Option<String>,
}

/// The rights of a ticket of `anabranch send`.
pub const SEND: &str = "send";

/// A ticket that a sender opened. No other sender can open it before this is dropped.
pub struct SenderTicket {
    pub name: String,
    pub share: TicketShare,
    /// The UDP port of the earlier run.
    pub port: Option<u16>,
    /// The public key of the earlier run.
    node: Option<String>,
    /// The share that the store had under this name.
    before: Option<ShareId>,
    /// The file's new content.
    ticket: Stored,
    _running: fs::File,
}

/// All tickets of a store.
#[derive(Debug, Default)]
pub struct TicketList {
    /// By name.
    pub tickets: Vec<(String, Stored)>,
    /// Names of files that are not tickets.
    pub damaged: Vec<String>,
}

impl Drop for Stored {
    fn drop(&mut self) {
        self.secret.zeroize();
    }
}

impl fmt::Debug for Stored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stored")
            .field("share", &self.share)
            .field("rights", &self.rights)
            .finish_non_exhaustive()
    }
}

impl Stored {
    /// The share that the ticket opens; `None` if the file was damaged.
    pub fn share(&self) -> Option<TicketShare> {
        let id = u64::from_str_radix(&self.share, 16).ok()?;
        let secret = self.secret.as_bytes().chunks(2).map(|pair| {
            let digits = std::str::from_utf8(pair).ok()?;
            u8::from_str_radix(digits, 16).ok()
        });
        let secret: Option<Zeroizing<Vec<u8>>> = secret.collect::<Option<Vec<u8>>>().map(Zeroizing::new);
        let secret = TicketSecret::from_random(secret?.as_slice().try_into().ok()?);
        let share = TicketShare::stored(ShareId(id), secret);
        Some(match self.expires_s {
            Some(end) => share.until(end),
            None => share,
        })
    }

    /// Refuses to use this ticket for other folders, or to give its holders more rights.
    fn check(&self, name: &str, rights: &str, folders: &[PathBuf]) -> Result<(), Failure> {
        let another =
            if rights == SEND { "--name NAME".to_owned() } else { format!("--ticket NAME={rights}") };
        let advice =
            format!("name another with `{another}`, or end that one with `anabranch ticket revoke {name}`");
        if self.rights != rights && (self.rights != "write" || rights == SEND) {
            let message = format!("the ticket `{name}` was given out with the right `{}`", self.rights);
            return Err(Failure::local(message).hint(advice));
        }
        if !self.folders.iter().any(|folder| folders.contains(folder)) {
            let for_others = self.folders.first().map(|folder| folder.display().to_string());
            let message = format!("the ticket `{name}` is for {}", for_others.unwrap_or_default());
            return Err(Failure::local(message).hint(advice));
        }
        Ok(())
    }
}

impl SenderTicket {
    /// True if an earlier run made it.
    pub fn is_old(&self) -> bool {
        self.before == Some(self.share.id)
    }

    /// True if it was made to last this long.
    pub fn lasts(&self, life: Span) -> bool {
        let made = self.ticket.made_s;
        let lasted = self.ticket.expires_s.map(|end| end.saturating_sub(made) as f64);
        // The clock may have gone on between the two.
        lasted.is_some_and(|lasted| (lasted - life.as_secs_f64()).abs() <= 1.0)
    }

    /// Why the lines that earlier runs printed do not lead to this port with this key, if they do not.
    pub fn warning(&self, port: u16, key: &str) -> Option<String> {
        let name = &self.name;
        let (what, option) = match (self.port, &self.node) {
            _ if !self.is_old() => return None,
            (_, Some(node)) if node != key => ("another key".to_owned(), "key"),
            (Some(before), _) if before != port => (format!("UDP port {before}"), "port"),
            _ => return None,
        };
        Some(format!(
            "earlier lines of the ticket `{name}` name {what} and lead nowhere now; give out this line, or start again \
             with the earlier `--{option}`"
        ))
    }
}

impl TicketStore {
    /// The store of this user.
    pub fn of_user() -> Result<Self, Failure> {
        let state = caps_directory().ok_or_else(|| {
            Failure::local("cannot tell where tickets are kept: HOME is not set").hint("set XDG_STATE_HOME")
        })?;
        Ok(Self(state.join("tickets")))
    }

    /// The directory of the tickets.
    pub fn directory(&self) -> &Path {
        &self.0
    }

    /// A store in this directory.
    #[cfg(test)]
    pub fn at(directory: &Path) -> Self {
        Self(directory.to_owned())
    }

    /// The ticket of this name, with these rights and folders. A missing one is made; another one stays as it is until
    /// [`Self::renew`].
    pub fn open(&self, name: &str, rights: &str, folders: &[PathBuf]) -> Result<TicketShare, Failure> {
        let _changing = self.lock()?;
        let (share, ticket) = self.find_or_make(name, rights, (folders, None))?;
        if self.stored_share(name).is_none() {
            self.write(name, &ticket)?;
        }
        Ok(share)
    }

    /// Stores the rights and folders of an opened ticket, now that its server runs. One that was revoked stays so.
    pub fn renew(&self, name: &str, rights: &str, folders: &[PathBuf]) -> Result<(), Failure> {
        let _changing = self.lock()?;
        if self.stored_share(name).is_none() {
            return Ok(());
        }
        let (_, ticket) = self.find_or_make(name, rights, (folders, None))?;
        self.write(name, &ticket)
    }

    /// The ticket of this name for `anabranch send`. A missing or expired one is made, and lasts for `lifetime`.
    /// [`Self::keep`] stores it.
    pub fn open_for_sender(
        &self,
        name: &str,
        paths: &[PathBuf],
        lifetime: Span,
    ) -> Result<SenderTicket, Failure> {
        let file = self.0.join(format!(".{name}.lock"));
        let running = self.open_lock(&file)?;
        let locked = running.try_lock();
        let before = self.stored_share(name);
        let (share, ticket) = self.find_or_make(name, SEND, (paths, Some(lifetime)))?;
        locked.map_err(|error| match error {
            fs::TryLockError::WouldBlock => {
                Failure::local(format!("another `anabranch send` uses the ticket `{name}` now"))
                    .hint("end that one first, or name another ticket with `--name NAME`")
            }
            fs::TryLockError::Error(error) => Failure::file("lock", &file, &error),
        })?;
        Ok(SenderTicket {
            name: name.to_owned(),
            share,
            port: ticket.port,
            node: ticket.node.clone(),
            before,
            ticket,
            _running: running,
        })
    }

    /// Stores a sender's ticket with the UDP port and the public key that it names.
    ///
    /// # Errors
    /// When the ticket was revoked since it was opened.
    pub fn keep(&self, opened: &mut SenderTicket, port: u16, key: &str) -> Result<(), Failure> {
        let _changing = self.lock()?;
        let name = &opened.name;
        if self.stored_share(name) != opened.before {
            return Err(Failure::local(format!("the ticket `{name}` was just revoked or made anew"))
                .hint("run the command again for a new ticket"));
        }
        opened.ticket.port = Some(port);
        opened.ticket.node = Some(key.to_owned());
        self.write(name, &opened.ticket)
    }

    fn find_or_make(
        &self,
        name: &str,
        rights: &str,
        (folders, lifetime): (&[PathBuf], Option<Span>),
    ) -> Result<(TicketShare, Stored), Failure> {
        let stored = match self.read(name) {
            Ok(stored) => Some(stored),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(self.failed(name, &error)),
        };
        let now = anabranch_node::wall().0;
        let stored = stored.filter(|stored| stored.expires_s.is_none_or(|end| end > now));
        let share = match &stored {
            Some(stored) => {
                stored.check(name, rights, folders)?;
                stored.share().ok_or_else(|| self.failed(name, &io::ErrorKind::InvalidData.into()))?
            }
            None => TicketShare::new(lifetime)?,
        };
        let secret: String = share.secret.expose().iter().map(|byte| format!("{byte:02x}")).collect();
        let port = stored.as_ref().and_then(|stored| stored.port);
        let node = stored.as_ref().and_then(|stored| stored.node.clone());
        let ticket = Stored {
            share: format!("{:016x}", share.id.0),
            secret,
            rights: rights.to_owned(),
            folders: folders.to_owned(),
            made_s: stored.map_or(now, |stored| stored.made_s),
            expires_s: share.expires(),
            port,
            node,
        };
        Ok((share, ticket))
    }

    /// The share of the ticket of this name, also of an expired one.
    fn stored_share(&self, name: &str) -> Option<ShareId> {
        self.read(name).ok()?.share().map(|share| share.id)
    }

    /// Keeps others from changing tickets until the file is dropped.
    fn lock(&self) -> Result<fs::File, Failure> {
        let path = self.0.join(".lock");
        let file = self.open_lock(&path)?;
        file.lock().map_err(|error| Failure::file("lock", &path, &error))?;
        Ok(file)
    }

    fn open_lock(&self, path: &Path) -> Result<fs::File, Failure> {
        let mut options = fs::OpenOptions::new();
        options.write(true).create(true).truncate(false);
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let opened = make_private(&self.0).and_then(|()| options.open(path));
        opened.map_err(|error| Failure::file("open", path, &error))
    }

    fn write(&self, name: &str, ticket: &Stored) -> Result<(), Failure> {
        let text =
            Zeroizing::new(toml::to_string(ticket).map_err(|error| Failure::local(error.to_string()))?);
        file::replace(&self.0.join(name), text.as_bytes()).map_err(|error| self.failed(name, &error))
    }

    fn failed(&self, name: &str, error: &io::Error) -> Failure {
        Failure::file("use the ticket", &self.0.join(name), error)
    }

    /// True while the ticket of this name opens this share. A damaged file counts as gone. One that cannot be read now, such
    /// as for want of open files, does not: clients could otherwise end the tickets of others.
    pub fn has(&self, name: &str, share: ShareId) -> bool {
        use io::ErrorKind::{InvalidData, NotADirectory, NotFound};
        match self.read(name) {
            Ok(stored) => stored.share().is_some_and(|stored| stored.id == share),
            Err(error) => !matches!(error.kind(), NotFound | NotADirectory | InvalidData),
        }
    }

    pub fn list(&self) -> Result<TicketList, Failure> {
        let mut list = TicketList::default();
        let entries = match fs::read_dir(&self.0) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(list),
            Err(error) => return Err(Failure::file("read", &self.0, &error)),
        };
        let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
        // Those with a dot are locks.
        for name in names.filter(|name| !name.starts_with('.')) {
            match self.read(&name) {
                Ok(stored) => list.tickets.push((name, stored)),
                Err(_) => list.damaged.push(name),
            }
        }
        list.tickets.sort_by(|one, other| one.0.cmp(&other.0));
        Ok(list)
    }

    /// Ends a ticket for good.
    pub fn revoke(&self, name: &str) -> Result<(), Failure> {
        let _changing = self.lock()?;
        let path = self.0.join(name);
        fs::remove_file(&path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => Failure::local(format!("there is no ticket `{name}`"))
                .hint("`anabranch ticket list` shows all"),
            _ => Failure::file("remove", &path, &error),
        })
    }

    fn read(&self, name: &str) -> io::Result<Stored> {
        let mut text = Zeroizing::new(String::new());
        fs::File::open(self.0.join(name))?.take(LONGEST).read_to_string(&mut text)?;
        toml::from_str(&text).map_err(|_| io::ErrorKind::InvalidData.into())
    }
}

/// Makes the directory for its owner only.
fn make_private(directory: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(directory)
}

/// Refuses folders that hold this machine's key or tickets: a client could fetch a ticket with more rights.
pub fn check_secrets(folders: &[PathBuf], secrets: &[&Path]) -> Result<(), Failure> {
    for secret in secrets {
        // The last ancestor of a relative path is empty and has no real path.
        let secret = std::path::absolute(secret).map_err(|error| Failure::file("find", secret, &error))?;
        let missing = secret.ancestors().find_map(|path| Some((path, path.canonicalize().ok()?)));
        let Some((there, real)) = missing else { continue };
        let real = real.join(secret.strip_prefix(there).unwrap_or(Path::new("")));
        if let Some(folder) = folders.iter().find(|folder| real.starts_with(folder)) {
            let message = format!("{} holds the key or the tickets of this machine", folder.display());
            return Err(Failure::local(message)
                .hint("serve directories below it, or keep those elsewhere with `--key`"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_stays_the_same_until_it_is_revoked_and_belongs_to_its_folders() {
        let directory = tempfile::tempdir().unwrap();
        let store = TicketStore(directory.path().join("state/tickets"));
        let [here, there] = ["/here", "/there"].map(PathBuf::from);
        let first = store.open("pub", "write", std::slice::from_ref(&here)).unwrap();
        let both = [there.clone(), here.clone()];
        let again = store.open("pub", "read", &both).unwrap();
        assert!(first.id == again.id && first.secret == again.secret);
        let kept = |store: &TicketStore| store.read("pub").unwrap().folders.clone();
        assert_eq!(kept(&store), std::slice::from_ref(&here), "the server may fail to start");
        store.renew("pub", "read", &both).unwrap();
        assert_eq!(kept(&store), both);
        assert!(store.has("pub", first.id) && !store.has("pub", ShareId(1)) && !store.has("none", first.id));
        let TicketList { tickets: all, damaged: bad } = store.list().unwrap();
        assert_eq!((all[0].0.as_str(), all[0].1.rights.as_str(), bad.len()), ("pub", "read", 0));
        for more in ["write", "drop"] {
            assert!(
                store.open("pub", more, std::slice::from_ref(&here)).is_err(),
                "its holders would get {more}"
            );
        }
        let other = store.open("pub", "read", &["/elsewhere".into()]).unwrap_err();
        assert!(other.message.contains("is for /there"), "{other}");
        store.revoke("pub").unwrap();
        store.renew("pub", "read", &both).unwrap();
        assert!(!store.has("pub", first.id) && store.revoke("pub").is_err());
        assert_ne!(store.open("pub", "read", &[here]).unwrap().id, first.id);
    }

    /// Opens and keeps the ticket `x` of a sender, then ends that sender.
    fn run(store: &TicketStore, path: &str, seconds: u64) -> Result<TicketShare, Failure> {
        let mut opened = store.open_for_sender("x", &[path.into()], Span::from_secs(seconds))?;
        store.keep(&mut opened, 4433, "k1")?;
        Ok(opened.share)
    }

    #[test]
    fn a_ticket_of_a_sender_keeps_its_end_and_port_and_is_made_anew_when_it_has_expired() {
        let directory = tempfile::tempdir().unwrap();
        let store = TicketStore::at(directory.path());
        let paths = [PathBuf::from("/here")];
        let first = run(&store, "/here", 60).unwrap();
        let again = store.open_for_sender("x", &paths, Span::from_secs(9_000)).unwrap();
        assert_eq!(
            (again.share.id, again.share.expires(), again.port),
            (first.id, first.expires(), Some(4433))
        );
        assert_eq!(again.warning(4433, "k1"), None);
        assert!(again.lasts(Span::from_secs(60)) && !again.lasts(Span::from_secs(9_000)));
        assert!(again.warning(4434, "k1").unwrap().contains("name UDP port 4433"));
        assert!(again.warning(4433, "k2").unwrap().contains("name another key"));
        drop(again);
        assert!(store.open("x", "read", &paths).is_err(), "its holders would get another right");
        let other = run(&store, "/there", 60).err().unwrap();
        assert!(other.message.contains("is for /here"), "{other}");
        store.open("w", "write", &paths).unwrap();
        assert!(store.open_for_sender("w", &paths, Span::from_secs(60)).is_err(), "it is a server's");
        let mut stored = store.read("x").unwrap();
        stored.expires_s = Some(1);
        store.write("x", &stored).unwrap();
        let anew = store.open_for_sender("x", &paths, Span::from_secs(60)).unwrap();
        assert_eq!(anew.warning(1, "k2"), None, "the earlier lines have expired");
        drop(anew);
        assert_ne!(run(&store, "/here", 60).unwrap().id, first.id);
    }

    #[test]
    fn two_senders_cannot_use_one_ticket_at_the_same_time() {
        let directory = tempfile::tempdir().unwrap();
        let store = TicketStore::at(directory.path());
        let first = store.open_for_sender("x", &["/here".into()], Span::from_secs(60)).unwrap();
        let second = run(&store, "/here", 60).unwrap_err();
        assert!(second.message.contains("another `anabranch send` uses the ticket `x`"), "{second}");
        drop(first);
        run(&store, "/here", 60).unwrap();
        let names: Vec<String> = store.list().unwrap().tickets.into_iter().map(|(name, _)| name).collect();
        assert_eq!((names, store.list().unwrap().damaged.len()), (vec!["x".to_owned()], 0));
    }

    #[test]
    fn a_sender_that_does_not_start_leaves_the_stored_ticket_as_it_was() {
        let directory = tempfile::tempdir().unwrap();
        let store = TicketStore::at(directory.path());
        run(&store, "/here", 60).unwrap();
        let paths = ["/here", "/there"].map(PathBuf::from);
        drop(store.open_for_sender("x", &paths, Span::from_secs(60)).unwrap());
        assert_eq!(store.read("x").unwrap().folders, [PathBuf::from("/here")]);
    }

    #[test]
    fn a_ticket_that_is_revoked_while_its_sender_starts_stays_revoked() {
        let directory = tempfile::tempdir().unwrap();
        let store = TicketStore::at(directory.path());
        run(&store, "/here", 60).unwrap();
        let mut starting = store.open_for_sender("x", &["/here".into()], Span::from_secs(60)).unwrap();
        store.revoke("x").unwrap();
        let failure = store.keep(&mut starting, 4433, "k1").unwrap_err();
        assert!(failure.message.contains("was just revoked"), "{failure}");
        assert!(!store.has("x", starting.share.id));
    }

    #[test]
    fn servers_that_start_at_the_same_time_get_one_ticket() {
        let directory = tempfile::tempdir().unwrap();
        let store = TicketStore::at(directory.path());
        let open = || store.open("pub", "read", &["/here".into()]).unwrap().id;
        for _ in 0..20 {
            let ids = std::thread::scope(|scope| {
                let servers: Vec<_> = (0..4).map(|_| scope.spawn(open)).collect();
                servers.into_iter().map(|server| server.join().unwrap()).collect::<Vec<_>>()
            });
            assert!(ids.iter().all(|id| store.has("pub", *id)), "{ids:?}");
            store.revoke("pub").unwrap();
        }
    }

    #[test]
    fn only_the_owner_may_read_a_ticket_and_a_damaged_one_is_reported() {
        use std::os::unix::fs::PermissionsExt as _;
        let directory = tempfile::tempdir().unwrap();
        let store = TicketStore(directory.path().join("tickets"));
        store.open("pub", "read", &["/here".into()]).unwrap();
        let mode = |path: PathBuf| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(store.0.clone()), mode(store.0.join("pub"))), (0o700, 0o600));
        fs::write(store.0.join("pub"), "share = 7").unwrap();
        assert!(!store.has("pub", ShareId(7)) && store.open("pub", "read", &["/here".into()]).is_err());
        assert_eq!(store.list().unwrap().damaged, ["pub"]);
        // Not readable is not revoked.
        fs::create_dir(store.0.join("busy")).unwrap();
        assert!(store.has("busy", ShareId(7)) && !store.has("none", ShareId(7)));
    }

    #[test]
    fn a_folder_that_holds_the_key_or_the_tickets_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let home = directory.path().canonicalize().unwrap();
        std::fs::create_dir(home.join("pub")).unwrap();
        let tickets = home.join("state/tickets");
        assert!(check_secrets(std::slice::from_ref(&home), &[&tickets]).is_err(), "not made yet");
        assert!(check_secrets(&[home.join("pub")], &[&tickets]).is_ok());
        let here = Path::new(".").canonicalize().unwrap();
        assert!(check_secrets(&[here], &[Path::new("not-made-yet.key")]).is_err(), "a relative path");
    }
}
