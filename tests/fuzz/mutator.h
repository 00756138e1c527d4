// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "tests/support/sample_files.h"

namespace ladder {

// Damages samples of what a parser reads. The inputs follow from the seed.
class Mutator {
 public:
  // Words to write into texts are found in the samples; `words` are further ones.
  Mutator(std::vector<Bytes> samples, std::vector<std::string> words, std::uint64_t seed);

  // A sample with up to four damages; sometimes none, so that whole samples count too.
  Bytes next();

  // True once in `times`.
  bool once_in(std::size_t times) { return below(times) == 0; }

 private:
  std::size_t below(std::size_t bound) { return static_cast<std::size_t>(random_() % bound); }
  std::uint8_t any_byte() { return static_cast<std::uint8_t>(random_()); }
  // 1 to 2^17, mostly short.
  std::size_t any_length() { return std::size_t{1} << below(1 + below(18)); }
  std::size_t any_place(const Bytes& bytes) { return below(bytes.size() + 1); }
  const std::string& any_word() { return words_[below(words_.size())]; }
  void insert_at(Bytes& bytes, std::size_t place, const Bytes& inserted);

  void damage(Bytes& bytes);
  void flip_bit(Bytes& bytes);
  void set_byte(Bytes& bytes);
  void truncate(Bytes& bytes);
  void insert_run(Bytes& bytes);
  void erase_bytes(Bytes& bytes);
  void splice(Bytes& bytes);
  void repeat(Bytes& bytes);
  void nest(Bytes& bytes);
  void change_number(Bytes& bytes);
  void change_digit(Bytes& bytes);
  void insert_word(Bytes& bytes);
  void replace_word(Bytes& bytes);

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
