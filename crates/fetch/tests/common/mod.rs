//! Helpers shared by the tests of downloads.

#![allow(dead_code, reason = "each test program uses its own part of this")]

pub mod server;

use std::time::Duration;

use anabranch_fetch::{FetchError, Job, Options, Outlet, Progress, Report, Route, RouteUse, Tls, fetch};
use tokio::sync::Notify;

pub use server::noise;

/// A folder and a job in it.
pub struct Place {
    pub folder: tempfile::TempDir,
    pub job: Job,
    pub options: Options,
}

impl Place {
    /// Fetches from these mirrors into a new folder.
    pub fn new(mirrors: &[String]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let job = Job {
            mirrors: mirrors.iter().map(|url| url.parse().unwrap()).collect(),
            target: folder.path().join("file"),
            replace: false,
            keep_finished: false,
            checksums: Vec::new(),
            size: None,
        };
        let options = Options {
            routes: vec![RouteUse { route: Route::System, name: "direct".to_owned(), rank: 0, cap: None }],
            caps: Vec::new(),
            connections: 4,
            limit: None,
            tls: Tls::new().unwrap(),
        };
        Self { folder, job, options }
    }

    /// Uses these loopback addresses as interfaces.
    #[must_use]
    pub fn over_addresses(mut self, last: &[u8]) -> Self {
        let route = |last: &u8| RouteUse {
            route: Route::Outlet(Outlet { interface: None, addresses: vec![[127, 0, 0, *last].into()] }),
            name: format!("lo{last}"),
            rank: 0,
            cap: None,
        };
        self.options.routes = last.iter().map(route).collect();
        self
    }

    pub async fn fetch(&self) -> Result<Report, FetchError> {
        fetch(&self.job, &self.options, &Progress::default(), &Notify::new()).await
    }

    /// Fetches and returns the notes for people.
    pub async fn fetch_with_notes(&self) -> (Report, Vec<String>) {
        let progress = Progress::default();
        let report = fetch(&self.job, &self.options, &progress, &Notify::new()).await.unwrap();
        (report, progress.take().notes)
    }

    /// Fetches and stops when so many bytes have come.
    pub async fn fetch_until(&self, bytes: u64) -> Result<Report, FetchError> {
        let (stop, progress) = (Notify::new(), Progress::default());
        let stopping = async {
            while progress.take().bytes < bytes {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            stop.notify_one();
            std::future::pending::<()>().await;
        };
        tokio::select! {
            ended = fetch(&self.job, &self.options, &progress, &stop) => ended,
            () = stopping => unreachable!("it waits for ever"),
        }
    }

    pub fn content(&self) -> Vec<u8> {
        std::fs::read(&self.job.target).unwrap()
    }

    /// Names in the folder.
    pub fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.folder.path()).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }
}
