//! A queue for rare items.

use std::collections::VecDeque;

/// A queue that is almost always empty, and takes one word then.
#[derive(Debug)]
pub(crate) struct RareQueue<T>(Option<Box<Items<T>>>);

/// A list takes three words, so it is boxed.
#[derive(Debug)]
struct Items<T> {
    list: VecDeque<T>,
}

impl<T> Default for RareQueue<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T> RareQueue<T> {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Its items, the oldest first.
    pub(crate) fn iter(&self) -> impl ExactSizeIterator<Item = &T> {
        self.0.as_ref().map_or_else(Default::default, |items| items.list.iter())
    }

    pub(crate) fn push(&mut self, item: T) {
        let items = self.0.get_or_insert_with(|| Box::new(Items { list: VecDeque::new() }));
        items.list.push_back(item);
    }

    /// Removes the oldest item.
    pub(crate) fn pop_oldest(&mut self) -> Option<T> {
        self.take(VecDeque::pop_front)
    }

    /// Removes the newest item.
    pub(crate) fn pop_newest(&mut self) -> Option<T> {
        self.take(VecDeque::pop_back)
    }

    fn take(&mut self, pop: impl FnOnce(&mut VecDeque<T>) -> Option<T>) -> Option<T> {
        let items = self.0.as_mut()?;
        let item = pop(&mut items.list);
        if items.list.is_empty() {
            self.0 = None;
        }
        item
    }

    pub(crate) fn clear(&mut self) {
        self.0 = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_come_in_order_and_an_empty_queue_takes_one_word() {
        let mut queue = RareQueue::default();
        for round in 0..2 {
            assert!(
                queue.is_empty() && queue.iter().len() == 0 && queue.pop_oldest().is_none(),
                "round {round}"
            );
            (1..4).for_each(|item| queue.push(item));
            assert_eq!(
                (queue.pop_oldest(), queue.iter().copied().collect::<Vec<_>>()),
                (Some(1), vec![2, 3])
            );
            assert_eq!((queue.pop_newest(), queue.is_empty(), queue.pop_newest()), (Some(3), false, Some(2)));
        }
        queue.push(4);
        queue.clear();
        assert!(queue.is_empty() && std::mem::size_of_val(&queue) == size_of::<usize>());
    }
}
