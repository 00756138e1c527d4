// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/mutator.h"

#include <algorithm>
#include <cctype>
#include <set>
#include <utility>

namespace ladder {
namespace {

// What parsers of texts stumble over.
constexpr const char* kWords[] = {"{",
                                  "}",
                                  "[",
                                  "]",
                                  ":",
                                  ",",
                                  "\"",
                                  "\"\"",
                                  "'",
                                  "\n",
                                  "=",
                                  "-",
                                  "+",
                                  "#",
                                  "%",
                                  "&a ",
                                  "*a",
                                  "!!binary ",
                                  "--- ",
                                  "...",
                                  ">-\n",
                                  "? ",
                                  "null",
                                  "true",
                                  "false",
                                  "~",
                                  "no",
                                  "0",
                                  "-0",
                                  "01",
                                  "-1",
                                  "1.5",
                                  "1e-3",
                                  "1e999",
                                  "nan",
                                  "inf",
                                  "0x10",
                                  "\\u0000",
                                  "\\ud800",
                                  "\xc3\xa9",
                                  "\xff",
                                  "\xef\xbb\xbf",
                                  "65536",
                                  "2147483647",
                                  "2147483648",
                                  "-2147483649",
                                  "4294967280",
                                  "4611686018427387905",
                                  "9223372036854775807",
                                  "9223372036854775808",
                                  "18446744073709551616"};

constexpr const char* kOpenings[] = {"[", "{\"a\":", "{a: ", "- ", "? ", "("};

bool is_of_word(std::uint8_t byte) {
  return std::isalnum(byte) != 0 || byte == '_' || byte == '.' || byte == '-';
}

void add_words(const Bytes& bytes, std::set<std::string>& words) {
  for (auto begin = bytes.begin(); begin != bytes.end();) {
    begin = std::find_if(begin, bytes.end(), is_of_word);
    const auto end = std::find_if_not(begin, bytes.end(), is_of_word);
    if (end - begin > 1) words.emplace(begin, end);
    begin = end;
  }
}

std::vector<std::string> all_words(const std::vector<Bytes>& samples,
                                   std::vector<std::string> words) {
  std::set<std::string> found(std::begin(kWords), std::end(kWords));
  for (const Bytes& sample : samples) add_words(sample, found);
  words.insert(words.end(), found.begin(), found.end());
  return words;
}

std::ptrdiff_t signed_of(std::size_t place) { return static_cast<std::ptrdiff_t>(place); }

}  // namespace

Mutator::Mutator(std::vector<Bytes> samples, std::vector<std::string> words, std::uint64_t seed)
    : samples_(std::move(samples)), words_(all_words(samples_, std::move(words))), random_(seed) {}

Bytes Mutator::next() {
  Bytes bytes = samples_[below(samples_.size())];
  for (std::size_t damages = below(5); damages > 0; --damages) damage(bytes);
  return bytes;
}

void Mutator::damage(Bytes& bytes) { (this->*kDamages[below(kDamages.size())])(bytes); }

void Mutator::insert_at(Bytes& bytes, std::size_t place, const Bytes& inserted) {
  bytes.insert(bytes.begin() + signed_of(place), inserted.begin(), inserted.end());
}

void Mutator::flip_bit(Bytes& bytes) {
  if (bytes.empty()) return;
  std::uint8_t& byte = bytes[below(bytes.size())];
  byte ^= static_cast<std::uint8_t>(1U << below(8));
}

void Mutator::set_byte(Bytes& bytes) {
  if (bytes.empty()) return;
  std::uint8_t& byte = bytes[below(bytes.size())];
  byte = any_byte();
}

void Mutator::truncate(Bytes& bytes) { bytes.resize(any_place(bytes)); }

void Mutator::insert_run(Bytes& bytes) {
  const std::size_t place = any_place(bytes);
  const std::size_t length = any_length();
  insert_at(bytes, place, Bytes(length, any_byte()));
}

void Mutator::erase_bytes(Bytes& bytes) {
  const auto begin = bytes.begin() + signed_of(any_place(bytes));
  const auto length = signed_of(1 + below(16));
  bytes.erase(begin, begin + std::min(bytes.end() - begin, length));
}

// The head of this sample and the tail of another.
void Mutator::splice(Bytes& bytes) {
  const Bytes& other = samples_[below(samples_.size())];
  bytes.resize(any_place(bytes));
  bytes.insert(bytes.end(), other.begin() + signed_of(any_place(other)), other.end());
}

// A piece of the input once more, somewhere else: a name twice, an object in another.
void Mutator::repeat(Bytes& bytes) {
  const auto begin = bytes.begin() + signed_of(any_place(bytes));
  const auto length = signed_of(1 + below(64));
  const Bytes piece(begin, begin + std::min(bytes.end() - begin, length));
  insert_at(bytes, any_place(bytes), piece);
}

// Up to 4096 levels, which are not closed.
void Mutator::nest(Bytes& bytes) {
  const std::string opening = kOpenings[below(std::size(kOpenings))];
  const std::size_t place = any_place(bytes);
  std::string levels;
  for (std::size_t level = std::min<std::size_t>(any_length(), 4096); level > 0; --level) {
    levels += opening;
  }
  insert_at(bytes, place, bytes_of(levels));
}

// Overwrites one of the first numbers of four bytes by one that parsers stumble over.
void Mutator::change_number(Bytes& bytes) {
  constexpr std::array<std::uint32_t, 8> kNumbers = {
      0, 1, 2, 28, 0x7fffffff, 0x80000000, 0xfffffffe, 0xffffffff};
  const std::uint32_t number = kNumbers[below(kNumbers.size())];
  const std::size_t begin = 4 * below(5);
  for (std::size_t i = begin; i < std::min(begin + 4, bytes.size()); ++i) {
    bytes[i] = static_cast<std::uint8_t>(number >> (8 * (begin + 3 - i)));
  }
}

// Changes a number written in text, if there is one.
void Mutator::change_digit(Bytes& bytes) {
  const auto is_digit = [](std::uint8_t byte) { return byte >= '0' && byte <= '9'; };
  const auto begin = bytes.begin() + signed_of(any_place(bytes));
  const auto digit = std::find_if(begin, bytes.end(), is_digit);
  if (digit != bytes.end()) *digit = static_cast<std::uint8_t>('0' + below(10));
}

void Mutator::insert_word(Bytes& bytes) {
  const std::size_t place = any_place(bytes);
  insert_at(bytes, place, bytes_of(any_word()));
}

// Another word where one stands: a known name or value in the place of a known one.
void Mutator::replace_word(Bytes& bytes) {
  const auto from = bytes.begin() + signed_of(any_place(bytes));
  const auto begin = std::find_if(from, bytes.end(), is_of_word);
  const auto end = std::find_if_not(begin, bytes.end(), is_of_word);
  const auto place = static_cast<std::size_t>(begin - bytes.begin());
  bytes.erase(begin, end);
  insert_at(bytes, place, bytes_of(any_word()));
}

}  // namespace ladder
