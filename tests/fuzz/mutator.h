// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cctype>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/sample_files.h"

namespace ladder {

// Damages samples of what a parser reads. The inputs follow from the seed.
class Mutator {
 public:
  // Words to write into texts are found in the samples; `words` are further ones.
  Mutator(std::vector<Bytes> samples, std::vector<std::string> words, std::uint64_t seed)
      : samples_(std::move(samples)), words_(std::move(words)), random_(seed) {
    auto found = difficult_words();
    for (const Bytes& sample : samples_) add_words(sample, found);
    words_.insert(words_.end(), found.begin(), found.end());
  }

  // A sample with up to four damages; sometimes none, so that whole samples count too.
  Bytes next() {
    Bytes bytes = samples_[below(samples_.size())];
    for (std::size_t damages = below(5); damages > 0; --damages) {
      (this->*kDamages[below(kDamages.size())])(bytes);
    }
    return bytes;
  }

  // True once in `times`.
  bool once_in(std::size_t times) { return below(times) == 0; }

 private:
  // What parsers of texts stumble over.
  static std::set<std::string> difficult_words() {
    std::istringstream texts(R"({ } [ ] : , " "" ' = - + # % ... null true false ~ no 0 -0 01 -1 1.5
        1e-3 1e999 nan inf 0x10 \u0000 \ud800 65536 2147483647 2147483648 -2147483649 4294967280
        4611686018427387905 9223372036854775807 9223372036854775808 18446744073709551616)");
    std::set<std::string> words(std::istream_iterator<std::string>(texts), {});
    words.insert(
        {"\n", "&a ", "*a", "!!binary ", "--- ", ">-\n", "? ", "\xc3\xa9", "\xff", "\xef\xbb\xbf"});
    return words;
  }

  static bool is_of_word(std::uint8_t byte) {
    return std::isalnum(byte) != 0 || byte == '_' || byte == '.' || byte == '-';
  }

  static void add_words(const Bytes& bytes, std::set<std::string>& words) {
    for (auto begin = bytes.begin(); begin != bytes.end();) {
      begin = std::find_if(begin, bytes.end(), is_of_word);
      const auto end = std::find_if_not(begin, bytes.end(), is_of_word);
      if (end - begin > 1) words.emplace(begin, end);
      begin = end;
    }
  }

  std::size_t below(std::size_t bound) { return static_cast<std::size_t>(random_() % bound); }
  std::uint8_t any_byte() { return static_cast<std::uint8_t>(random_()); }
  // 1 to 2^17, mostly short.
  std::size_t any_length() { return std::size_t{1} << below(1 + below(18)); }
  template <typename SomeBytes>
  auto any_place(SomeBytes& bytes) {
    return bytes.begin() + static_cast<std::ptrdiff_t>(below(bytes.size() + 1));
  }
  // From any place on, and of at most `most` bytes.
  std::pair<Bytes::iterator, Bytes::iterator> any_piece(Bytes& bytes, std::size_t most) {
    const auto begin = any_place(bytes);
    const auto length = static_cast<std::ptrdiff_t>(1 + below(most));
    return {begin, begin + std::min(bytes.end() - begin, length)};
  }
  static void insert(Bytes& bytes, Bytes::iterator place, const Bytes& inserted) {
    bytes.insert(place, inserted.begin(), inserted.end());
  }
  Bytes any_word() { return bytes_of(words_[below(words_.size())]); }

  void flip_bit(Bytes& bytes) {
    if (!bytes.empty()) bytes[below(bytes.size())] ^= static_cast<std::uint8_t>(1U << below(8));
  }
  void set_byte(Bytes& bytes) {
    if (!bytes.empty()) bytes[below(bytes.size())] = any_byte();
  }
  void truncate(Bytes& bytes) { bytes.erase(any_place(bytes), bytes.end()); }
  void insert_run(Bytes& bytes) {
    insert(bytes, any_place(bytes), Bytes(any_length(), any_byte()));
  }
  void erase_bytes(Bytes& bytes) {
    const auto [begin, end] = any_piece(bytes, 16);
    bytes.erase(begin, end);
  }
  // The head of this sample and the tail of another.
  void splice(Bytes& bytes) {
    const Bytes& other = samples_[below(samples_.size())];
    truncate(bytes);
    bytes.insert(bytes.end(), any_place(other), other.end());
  }
  // A piece of the input once more, somewhere else: a name twice, an object in another.
  void repeat(Bytes& bytes) {
    const auto [begin, end] = any_piece(bytes, 64);
    const Bytes piece(begin, end);
    insert(bytes, any_place(bytes), piece);
  }
  // Up to 4096 levels, which are not closed.
  void nest(Bytes& bytes) {
    constexpr std::array kOpenings = {"[", "{\"a\":", "{a: ", "- ", "? ", "("};
    const std::string opening = kOpenings[below(kOpenings.size())];
    std::string levels;
    for (auto level = std::min<std::size_t>(any_length(), 4096); level > 0; --level) {
      levels += opening;
    }
    insert(bytes, any_place(bytes), bytes_of(levels));
  }
  // Overwrites one of the first numbers of four bytes by one that parsers stumble over.
  void change_number(Bytes& bytes) {
    constexpr std::array<std::uint32_t, 8> kNumbers = {
        0, 1, 2, 28, 0x7fffffff, 0x80000000, 0xfffffffe, 0xffffffff};
    const std::uint32_t number = kNumbers[below(kNumbers.size())];
    const std::size_t begin = 4 * below(5);
    for (std::size_t i = begin; i < std::min(begin + 4, bytes.size()); ++i) {
      bytes[i] = static_cast<std::uint8_t>(number >> (8 * (begin + 3 - i)));
    }
  }
  // Changes a number written in text, if there is one.
  void change_digit(Bytes& bytes) {
    const auto is_digit = [](std::uint8_t byte) { return byte >= '0' && byte <= '9'; };
    const auto digit = std::find_if(any_place(bytes), bytes.end(), is_digit);
    if (digit != bytes.end()) *digit = static_cast<std::uint8_t>('0' + below(10));
  }
  void insert_word(Bytes& bytes) {
    const auto place = any_place(bytes);
    insert(bytes, place, any_word());
  }
  // Another word where one stands: a known name or value in the place of a known one.
  void replace_word(Bytes& bytes) {
    const auto begin = std::find_if(any_place(bytes), bytes.end(), is_of_word);
    insert(bytes, bytes.erase(begin, std::find_if_not(begin, bytes.end(), is_of_word)), any_word());
  }

  using Damage = void (Mutator::*)(Bytes&);
  static constexpr std::array<Damage, 12> kDamages = {
      &Mutator::flip_bit,     &Mutator::set_byte,    &Mutator::truncate,
      &Mutator::insert_run,   &Mutator::erase_bytes, &Mutator::splice,
      &Mutator::repeat,       &Mutator::nest,        &Mutator::change_number,
      &Mutator::change_digit, &Mutator::insert_word, &Mutator::replace_word};

  std::vector<Bytes> samples_;
  std::vector<std::string> words_;
  std::mt19937_64 random_;
};

}  // namespace ladder
