// SPDX-License-Identifier: Apache-2.0
#include "ladder/checkpoint/tensor_bytes.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <cstring>
#include <string>
#include <vector>

#include "ladder/core/error.h"
#include "tests/support/expect_error.h"

namespace ladder {
namespace {

std::vector<float> floats_of(const torch::Tensor& tensor) {
  const RowMajorBytes bytes(tensor);
  std::vector<float> values(bytes.span().size() / sizeof(float));
  std::memcpy(values.data(), bytes.span().data(), bytes.span().size());
  return values;
}

TEST(RowMajorBytes, AreRowMajorHoweverTheTensorLies) {
  const auto images = torch::arange(12.0F).view({1, 3, 2, 2});
  const std::vector<float> row_major = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
  EXPECT_EQ(floats_of(images), row_major);
  EXPECT_EQ(floats_of(images.contiguous(torch::MemoryFormat::ChannelsLast)), row_major);
  EXPECT_EQ(floats_of(torch::arange(4.0F).view({2, 2}).t()), (std::vector<float>{0, 2, 1, 3}));
  EXPECT_EQ(floats_of(torch::arange(4.0F).narrow(0, 1, 2)), (std::vector<float>{1, 2}));
  EXPECT_EQ(floats_of(torch::ones({1}).expand({3})), (std::vector<float>{1, 1, 1}));
}

TEST(RowMajorBytes, ShareTheMemoryOfAContiguousTensor) {
  const auto tensor = torch::ones({4}, torch::requires_grad());
  EXPECT_EQ(static_cast<const void*>(RowMajorBytes(tensor).span().data()), tensor.const_data_ptr());
}

TEST(RowMajorBytes, OfAnEmptyTensorAreNone) {
  EXPECT_TRUE(RowMajorBytes(torch::empty({0, 3})).span().empty());
}

// python3: hashlib.sha256(struct.pack("<3q", 0, 1, 2)).hexdigest()[:16], and of b""
TEST(ShortHash, IsTheBeginningOfTheSha256OfTheBytes) {
  EXPECT_EQ(tensor_digest(torch::arange(3, torch::kInt64)), "ab25350e3e65efeb");
  EXPECT_EQ(tensor_digest(torch::empty({0})), "e3b0c44298fc1c14");
  EXPECT_NE(tensor_digest(torch::tensor(0.0F)), tensor_digest(torch::tensor(-0.0F)));
}

TEST(SafetensorsDtype, NamesAreThoseOfTheFormatInBothDirections) {
  const std::vector<std::pair<torch::ScalarType, std::string>> names = {
      {torch::kBool, "BOOL"},   {torch::kUInt8, "U8"},      {torch::kInt8, "I8"},
      {torch::kInt16, "I16"},   {torch::kUInt16, "U16"},    {torch::kInt32, "I32"},
      {torch::kUInt32, "U32"},  {torch::kInt64, "I64"},     {torch::kUInt64, "U64"},
      {torch::kFloat16, "F16"}, {torch::kBFloat16, "BF16"}, {torch::kFloat32, "F32"},
      {torch::kFloat64, "F64"}};
  for (const auto& [dtype, name] : names) {
    EXPECT_EQ(safetensors_dtype(dtype), name);
    EXPECT_EQ(dtype_of_safetensors(name), dtype);
  }
}

TEST(SafetensorsDtype, RefusesWhatTheFormatLacks) {
  EXPECT_ERROR(safetensors_dtype(torch::kComplexFloat), UsageError,
               "safetensors: has no dtype ComplexFloat; hint: convert the tensor");
  EXPECT_ERROR(dtype_of_safetensors("F31"), UsageError, "safetensors dtype: expected one of F32");
}

}  // namespace
}  // namespace ladder
