//! A bounded queue between threads. A producer that found it full goes on when it is half empty, so that
//! they do not wake each other for every item.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// The end that puts items in; dropping it ends the queue.
pub(super) struct Input<T>(Arc<Shared<T>>);

/// The end that takes items out.
pub(crate) struct Output<T>(Arc<Shared<T>>);

struct Shared<T> {
    state: Mutex<State<T>>,
    most: usize,
    has_items: Condvar,
    has_room: Condvar,
}

struct State<T> {
    items: VecDeque<T>,
    /// One of the ends was dropped.
    has_ended: bool,
}

/// A queue that takes more items while it has fewer than `most`.
pub(super) fn queue<T>(most: usize) -> (Input<T>, Output<T>) {
    let state = Mutex::new(State { items: VecDeque::new(), has_ended: false });
    let shared = Arc::new(Shared { state, most, has_items: Condvar::new(), has_room: Condvar::new() });
    (Input(Arc::clone(&shared)), Output(shared))
}

impl<T> Input<T> {
    /// How many items wait.
    pub fn len(&self) -> usize {
        self.0.lock().items.len()
    }

    /// Waits for room and adds all items; false if the other end was dropped.
    pub fn put(&self, items: &mut Vec<T>) -> bool {
        let mut state = self.0.lock();
        while state.items.len() >= self.0.most && !state.has_ended {
            state = self.0.has_room.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.items.extend(items.drain(..));
        let is_open = !state.has_ended;
        drop(state);
        self.0.has_items.notify_one();
        is_open
    }
}

impl<T> Output<T> {
    /// Waits for the next item; `None` after the last one.
    pub fn take(&self) -> Option<T> {
        self.take_with(|items| items.pop_front())
    }

    /// Waits for items and takes at most `most` of them; none after the last one.
    pub fn take_many(&self, most: usize) -> Vec<T> {
        self.take_with(|items| items.drain(..most.min(items.len())).collect())
    }

    fn take_with<U>(&self, take: impl FnOnce(&mut VecDeque<T>) -> U) -> U {
        let mut state = self.0.lock();
        while state.items.is_empty() && !state.has_ended {
            state = self.0.has_items.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let before = state.items.len();
        let taken = take(&mut state.items);
        let half = self.0.most / 2;
        let has_room = before > half && state.items.len() <= half;
        drop(state);
        if has_room {
            self.0.has_room.notify_one();
        }
        taken
    }
}

impl<T> Shared<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self) {
        self.lock().has_ended = true;
        self.has_items.notify_all();
        self.has_room.notify_all();
    }
}

impl<T> Drop for Input<T> {
    fn drop(&mut self) {
        self.0.end();
    }
}

impl<T> Drop for Output<T> {
    fn drop(&mut self) {
        self.0.end();
        // They may hold files open.
        self.0.lock().items.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn a_full_queue_takes_more_when_it_is_half_empty_and_ends_after_its_last_item() {
        let (input, output) = queue(4);
        assert!(input.put(&mut vec![0, 1, 2, 3]));
        let producer = thread::spawn(move || input.put(&mut vec![4, 5]));
        assert_eq!([output.take(), output.take()], [Some(0), Some(1)]);
        assert!(producer.join().unwrap());
        let rest: Vec<i32> = std::iter::from_fn(|| output.take()).collect();
        assert_eq!(rest, [2, 3, 4, 5]);
    }

    #[test]
    fn a_producer_that_waits_learns_that_no_one_takes_its_items() {
        let (input, output) = queue(1);
        assert!(input.put(&mut vec![0]));
        let producer = thread::spawn(move || input.put(&mut vec![1]));
        drop(output);
        assert!(!producer.join().unwrap());
    }
}
